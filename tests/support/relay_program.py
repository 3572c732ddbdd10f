"""Pass connections from a TCP port of this network namespace to a Unix socket.

    python relay_program.py SOCKET PORT_FILE

The relay ends when its first connection to the socket does.
"""

import os
import socket
import sys
import threading
from pathlib import Path


def pump(source: socket.socket, target: socket.socket) -> None:
    """Copy bytes until the source ends."""
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        source.close()
        target.close()


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
        for pair in ((here, there), (there, here)):
            threading.Thread(target=pump, args=pair, daemon=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
