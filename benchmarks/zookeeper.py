"""A one-server ZooKeeper for a benchmark, where Debian's package `zookeeper` is installed."""

from __future__ import annotations

import importlib.util
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_JAR = Path("/usr/share/java/zookeeper.jar")
_MAIN = "org.apache.zookeeper.server.ZooKeeperServerMain"
_STARTS_WITHIN_S = 60.0


def is_installed() -> bool:
    """Return whether the server, Java and the client are installed."""
    return _JAR.exists() and bool(shutil.which("java")) and bool(importlib.util.find_spec("kazoo"))


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """Run a server with its data in a folder, on a free port of this host; yield its address."""
    port = _free_port()
    data = folder / "zookeeper-data"
    data.mkdir()
    config = folder / "zoo.cfg"
    config.write_text(
        f"dataDir={data}\nclientPort={port}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n"
    )
    argv = ["java", "-cp", str(_JAR), _MAIN, str(config)]
    with (folder / "zookeeper.log").open("wb") as log:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _wait(process, port, folder / "zookeeper.log")
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + _STARTS_WITHIN_S
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"ZooKeeper does not start: {log.read_text(errors='replace')[-2000:]}")
