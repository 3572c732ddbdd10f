"""A TCP proxy before a real server that cuts, corrupts, delays, refuses and counts."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator


class FaultyProxy:
    """Passes connections on; each fault is an attribute that a test sets."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self._server.getsockname()[1]
        self._lock = threading.Lock()
        self.served_bytes = 0
        """How much the server has sent to clients, headers too."""
        self.requests = 0
        """How often a client has sent something after the server spoke, or at first."""
        self.cut_after_bytes: int | None = None
        """The next connection is cut once the server has sent so much; then it is None."""
        self.cuts = 0
        self.corrupts = 0
        """In so many answers a byte of the body is changed."""
        self.answers: list[bytes] = []
        """What the next requests are answered, in place of the server."""
        self.pause_s = 0.0
        """How long each piece of an answer waits."""
        self.accepted = 0
        """How many connections clients have opened."""
        self.most_accepted: int | None = None
        """Further connections are closed at once, as by a server that limits them."""
        self.is_dead = False
        """Whether each connection is cut at once, as by a server that was killed."""
        self.rewrite: Callable[[bytes], bytes] = lambda data: data
        """Changes each piece, of requests and answers; the length stays."""
        self.on_request: Callable[[bytes], None] = lambda _: None
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def host(self) -> str:
        """`HOST:PORT` of the proxy."""
        return f"127.0.0.1:{self.port}"

    def close(self) -> None:
        """Accept nothing more."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            self.accepted += 1
            if self.most_accepted is not None and self.accepted > self.most_accepted:
                client.close()
                continue
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.closing(client):
            if self.is_dead:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            with contextlib.closing(server):
                back = threading.Thread(target=self._back, args=(server, client), daemon=True)
                back.start()
                while data := client.recv(1 << 16):
                    self.requests += 1
                    data = self.rewrite(data)
                    self.on_request(data)
                    with self._lock:
                        answer = self.answers.pop(0) if self.answers else None
                    if answer is not None:
                        client.sendall(answer)
                        return
                    server.sendall(data)
                server.shutdown(socket.SHUT_WR)
                back.join()

    def _back(self, server: socket.socket, client: socket.socket) -> None:
        sent = 0
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                if self.pause_s:
                    time.sleep(self.pause_s)
                if self.is_dead:
                    client.shutdown(socket.SHUT_RDWR)
                    return
                with self._lock:
                    data = self._harmed(self.rewrite(data), sent)
                    self.served_bytes += len(data)
                    if self.cut_after_bytes is not None and sent + len(data) > self.cut_after_bytes:
                        self.cut_after_bytes = None
                        self.cuts += 1
                        client.shutdown(socket.SHUT_RDWR)
                        return
                sent += len(data)
                client.sendall(data)
            client.shutdown(socket.SHUT_WR)

    def _harmed(self, data: bytes, sent: int) -> bytes:
        """Change one byte of a body: not in its headers, and in no answer without a long one."""
        if self.corrupts and sent > 4096 and len(data) > 4096 and b"HTTP/1.1" not in data:
            self.corrupts -= 1
            middle = len(data) // 2
            return data[:middle] + bytes([data[middle] ^ 0x10]) + data[middle + 1 :]
        return data


@contextlib.contextmanager
def faulty_proxy(port: int) -> Iterator[FaultyProxy]:
    """Yield a proxy before a port of this machine."""
    proxy = FaultyProxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
