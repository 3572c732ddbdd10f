"""Pass connections from a TCP port of this network namespace to a Unix socket.

    python relay_program.py SOCKET PORT_FILE

The relay ends when its first connection to the socket does.
"""

import contextlib
import os
import socket
import sys
import threading
from pathlib import Path


def pump(source: socket.socket, target: socket.socket) -> None:
    """Copy bytes until the source ends."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def join(here: socket.socket, there: socket.socket) -> None:
    """Copy both ways until both ends are done."""
    with here, there:
        back = threading.Thread(target=pump, args=(there, here), daemon=True)
        back.start()
        pump(here, there)
        back.join()


def connect(path: str) -> socket.socket:
    """Return a connection to the Unix socket."""
    made = socket.socket(socket.AF_UNIX)
    made.connect(path)
    return made


def main(path: str, port_file: str) -> None:
    """Relay until the first connection ends."""
    life = connect(path)
    server = socket.create_server(("0.0.0.0", 0), backlog=128)
    new = Path(port_file + ".new")
    new.write_text(str(server.getsockname()[1]))
    new.rename(port_file)
    threading.Thread(target=serve, args=(server, path), daemon=True).start()
    life.recv(1)
    os._exit(0)


def serve(server: socket.socket, path: str) -> None:
    """Accept connections for ever."""
    while True:
        here, _ = server.accept()
        there = connect(path)
        threading.Thread(target=join, args=(here, there), daemon=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
