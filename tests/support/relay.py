"""Let a cluster's nodes reach a server of this machine: they live in a network of their own."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from relay_program import join
from repository import SUPPORT


@contextlib.contextmanager
def relayed(cluster: Any, port: int) -> Iterator[str]:
    """Yield the address, `HOST:PORT`, at which the cluster's hosts reach a port of this machine."""
    with tempfile.TemporaryDirectory(dir=cluster.folder) as folder, contextlib.ExitStack() as stack:
        path, port_file = f"{folder}/s", Path(folder, "port")
        Path(folder).chmod(0o755)
        program = Path(folder, "relay_program.py")  # the cluster does not see the repository
        program.write_text((SUPPORT / "relay_program.py").read_text())
        server = stack.enter_context(contextlib.closing(socket.socket(socket.AF_UNIX)))
        server.bind(path)
        Path(path).chmod(0o777)
        server.listen(128)
        argv = [str(cluster.node_python), str(program), path, str(port_file)]
        relay = subprocess.Popen(
            [*cluster.command("exec"), *argv], env=cluster.environment(), stdin=subprocess.DEVNULL
        )
        server.settimeout(60)
        life, _ = server.accept()
        server.settimeout(None)
        threading.Thread(target=_serve, args=(server, port), daemon=True).start()
        try:
            while not port_file.exists():
                assert relay.poll() is None
                time.sleep(0.02)
            addresses = cluster.exec("ip", "-4", "-o", "addr", "show", "br0")
            address = re.findall(r"inet ([\d.]+)/", addresses)[0]
            yield f"{address}:{port_file.read_text()}"
        finally:
            life.close()
            server.shutdown(socket.SHUT_RDWR)
            relay.wait(60)


def _serve(server: socket.socket, port: int) -> None:
    while True:
        try:
            there, _ = server.accept()
        except OSError:
            return
        here = socket.create_connection(("127.0.0.1", port))
        threading.Thread(target=join, args=(here, there), daemon=True).start()
