"""Frames over TCP, and which peers are accepted."""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from psrv.transport import sockets, tcp
from psrv.transport.base import DisconnectedError, Frame, Greeting, Kind, Purpose, RefusedError
from psrv.transport.unauthenticated import MAX_UNAUTHENTICATED, Refusals, UnauthenticatedPeers

SECRET = b"s" * 32
GREETING = Greeting(1, 1, 0, Purpose.EXCHANGE, digest=5)
Wait = Callable[..., Any]


class Server:
    """A listener that keeps what it accepts and what it logs."""

    def __init__(self) -> None:
        self.accepted: queue.Queue[tuple[Greeting, tcp.Connection]] = queue.Queue()
        self.logged: list[str] = []
        self.reason = ""
        self.listener = tcp.TcpListener(
            "127.0.0.1", SECRET, lambda greeting: self.reason,
            lambda greeting, connection: self.accepted.put((greeting, connection)),
            self.logged.append,
        )  # fmt: skip
        self.listener.start()

    def dial(self, secret: bytes = SECRET) -> tcp.Connection:
        return tcp.dial("127.0.0.1", self.listener.port, GREETING, secret)

    def pair(self) -> tuple[tcp.Connection, tcp.Connection]:
        ours = self.dial()
        greeting, theirs = self.accepted.get(timeout=60)
        assert greeting == GREETING
        return ours, theirs


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.listener.close()


def congestion_control(sock: socket.socket) -> bytes:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")


def test_connections_avoid_bbr_where_it_is_the_default():
    with socket.socket() as connection:
        with contextlib.suppress(OSError):  # not every host has BBR
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")
        sockets.tune(connection)
        assert congestion_control(connection) not in (b"", b"bbr")


def test_sockets_are_tuned_before_they_are_connected(monkeypatch):
    """BBR leaves a connection paced forever; accepted sockets inherit from their listener."""
    connected: list[bool] = []
    tune = sockets.tune

    def look_and_tune(sock: socket.socket) -> None:
        listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        connected.append(bool(listens) or sock.getsockname()[1] != 0)
        tune(sock)

    monkeypatch.setattr(sockets, "tune", look_and_tune)
    listener = sockets.listen("127.0.0.1")
    with listener, sockets.connect(*listener.getsockname(), timeout_s=60) as ours:
        theirs, _ = listener.accept()
        with theirs:
            assert connected == [False, False]
            for end in (ours, theirs):
                assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                limit_ms = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
                assert limit_ms == 1000 * sockets.PEER_SILENT_S
                assert congestion_control(end) not in (b"", b"bbr")


def test_only_the_named_address_is_bound(server):
    """All of 127.0.0.0/8 belongs to this host and stands for another of its networks."""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", server.listener.port))


def test_frames_arrive_whole_and_in_order_in_both_directions(server):
    ours, theirs = server.pair()
    blocks = [torch.randn(65_536) for _ in range(8)]

    def send(connection: tcp.Connection) -> None:
        for number in range(200):
            block = blocks[number % 8]
            frame = Frame(Kind.TOTAL, 1, number, 2**63, -1, 3, 0.125)
            connection.send(frame, memoryview(block.numpy()).cast("B"))
        connection.send(Frame(Kind.CLOCK, number=9))

    threads = [threading.Thread(target=send, args=(end,)) for end in (ours, theirs)]
    for thread in threads:
        thread.start()
    for end in (ours, theirs):
        into = torch.empty(65_536)
        for number in range(200):
            frame = end.receive(memoryview(into.numpy()).cast("B"))
            assert frame == Frame(Kind.TOTAL, 1, number, 2**63, -1, 3, 0.125, 262_144)
            assert torch.equal(into, blocks[number % 8])
        assert end.readable(1)
        assert end.receive(memoryview(bytearray())) == Frame(Kind.CLOCK, number=9)
        assert not end.readable(0)
    for thread in threads:
        thread.join()


def test_closing_a_connection_ends_waiting_threads_on_both_sides(server):
    ours, theirs = server.pair()
    ends: list[str] = []

    def wait() -> None:
        with pytest.raises(DisconnectedError) as seen:
            ours.receive(memoryview(bytearray(8)))
        ends.append(str(seen.value))

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    ours.close()
    thread.join(60)
    assert len(ends) == 1
    with pytest.raises(DisconnectedError, match="ended the connection"):
        theirs.receive(memoryview(bytearray(8)))
    with pytest.raises(DisconnectedError):
        for _ in range(100):
            ours.send(Frame(Kind.CLOCK))


def test_a_frame_that_is_too_long_is_refused(server):
    ours, theirs = server.pair()
    ours.send(Frame(Kind.TOTAL), memoryview(bytes(100)))
    with pytest.raises(DisconnectedError, match="a frame of 100 bytes, 99 fit"):
        theirs.receive(memoryview(bytearray(99)))


@pytest.mark.parametrize("what", ["repeated", "changed"])
def test_a_manipulated_frame_is_refused(server, what):
    ours, theirs = server.pair()
    raw, sent = ours._socket, []

    class Tap:
        def sendall(self, data: bytes) -> None:
            sent.append(bytes(data))
            raw.sendall(data)

    ours._socket = Tap()  # type: ignore[assignment]
    ours.send(Frame(Kind.CLOCK, number=1))
    ours._socket = raw
    theirs.receive(memoryview(bytearray()))
    if what == "changed":
        ours._sends = ours._receives  # another key
        ours.send(Frame(Kind.CLOCK, number=1))
    else:
        raw.sendall(sent[0])
    with pytest.raises(DisconnectedError, match="not the other side's next one"):
        theirs.receive(memoryview(bytearray()))


def test_an_opener_without_the_secret_is_refused_and_learns_nothing(server, wait_until):
    with pytest.raises(RefusedError, match="does not know the secret of this training's attempt"):
        server.dial(secret=b"t" * 32)
    wait_until(lambda: server.logged, 60)
    assert "node 1 of attempt 1" in server.logged[0] and "s" * 32 not in server.logged[0]
    assert server.accepted.empty()


def test_a_refused_opener_is_told_why(server, wait_until):
    server.reason = "node 1 was given up\x1b[2J"
    with pytest.raises(RefusedError, match=r"node 1 was given up\\x1b\[2J"):
        server.dial()
    wait_until(lambda: server.logged, 60)
    assert server.accepted.empty()


def test_a_server_without_the_secret_is_refused():
    """It accepts every proof, but can't give its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"\0" + bytes(32))
                connection.recv(1000)
                connection.sendall(b"\0" + bytes(32))
                connection.recv(1)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(RefusedError, match="is no server of this training"):
            tcp.dial("127.0.0.1", listener.getsockname()[1], GREETING, SECRET)
        thread.join(60)


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n" + bytes(200), b"", b"dlctlps"])
def test_garbage_and_silence_end_a_handshake(server, wait_until, monkeypatch, said):
    monkeypatch.setattr(tcp, "HANDSHAKE_LIMIT_S", 0.2)
    with socket.create_connection(("127.0.0.1", server.listener.port)) as peer:
        peer.sendall(said)
        wait_until(lambda: server.logged, 60)
        assert "another language" in server.logged[0] or "within 0.2 s" in server.logged[0]
        peer.settimeout(60)
        with (
            pytest.raises(ConnectionResetError) if said[:3] == b"GET" else contextlib.nullcontext()
        ):
            assert peer.recv(1) == b""


def test_many_unauthenticated_peers_keep_nobody_out(server, wait_until):
    peers = [
        socket.create_connection(("127.0.0.1", server.listener.port))
        for _ in range(MAX_UNAUTHENTICATED + 1)
    ]
    wait_until(lambda: server.logged, 60)  # the first of them was closed
    peers[0].settimeout(60)
    assert peers[0].recv(1) == b""
    for _ in range(3):
        server.pair()
    for peer in peers:
        peer.close()


def test_the_busiest_address_loses_its_oldest_connection():
    peers, pairs = (
        UnauthenticatedPeers(),
        [socket.socketpair() for _ in range(MAX_UNAUTHENTICATED + 1)],
    )
    for number, (here, _) in enumerate(pairs):
        peers.add(here, "10.0.0.1" if number in (0, 5, MAX_UNAUTHENTICATED) else "10.0.0.2")
    ended = [number for number, (_, there) in enumerate(pairs) if _has_ended(there)]
    assert ended == [1]
    for pair in pairs:
        for end in pair:
            end.close()


def _has_ended(end: socket.socket) -> bool:
    end.setblocking(False)
    try:
        return end.recv(1) == b""
    except BlockingIOError:
        return False


def test_refusals_do_not_fill_the_disk():
    lines: list[str] = []
    now = [0.0]
    refusals = Refusals(lines.append, lambda: now[0])
    for number in range(1000):
        refusals.say(f"refused {number}")
    assert lines == [f"refused {number}" for number in range(20)]
    now[0] += 1.5
    refusals.say("refused again")
    refusals.say("refused at once")
    assert lines[20:] == ["refused again (and 980 more since the last such line)"]


def test_a_peer_is_refused_without_a_free_thread_and_the_next_is_accepted(server, monkeypatch):
    start = threading.Thread.start

    def fail(thread: threading.Thread) -> None:
        if thread.name == "peer":
            monkeypatch.setattr(threading.Thread, "start", start)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(DisconnectedError):
        server.dial()
    server.pair()
    assert "can't start new thread" in server.logged[0]


def test_an_old_proof_fits_no_new_connection(server):
    """The bytes of an earlier opener are replayed."""
    said: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as between:

        def carry() -> None:
            opener, _ = between.accept()
            with opener, socket.create_connection(("127.0.0.1", server.listener.port)) as primary:
                for length in (tcp._GREETING.size, 32):
                    said.append(opener.recv(length, socket.MSG_WAITALL))
                    primary.sendall(said[-1])
                    opener.sendall(primary.recv(33, socket.MSG_WAITALL))

        thread = threading.Thread(target=carry)
        thread.start()
        tcp.dial("127.0.0.1", between.getsockname()[1], GREETING, SECRET)
        thread.join(60)
    with socket.create_connection(("127.0.0.1", server.listener.port)) as again:
        again.sendall(said[0])
        again.recv(33, socket.MSG_WAITALL)
        again.sendall(said[1])
        answer = again.recv(1000)
        assert answer[:1] == b"\1"
        assert b"secret" in answer
        (size,) = struct.unpack("!H", answer[1:3])
        assert len(answer) == 3 + size
