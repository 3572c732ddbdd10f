"""The servers that `serve` measures, and what the system tells of their processes."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rest_server import free_port  # type: ignore[import-not-found]

from benchmarks.client import Client
from benchmarks.peer_environment import PeerEnvironment
from benchmarks.report import Load

_PATIENCE_S = 60.0
_EMPTY = """\
import sys, uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

app = Starlette(routes=[Route("/", lambda _: JSONResponse({}))])
uvicorn.run(app, port=int(sys.argv[1]), log_level="critical", lifespan="off")
"""
SKYPILOT = PeerEnvironment("serve")
_CLUSTERS = Path(__file__).with_name("skypilot_clusters.py")


@dataclass
class ServerClient:
    """A client of one server, over one connection."""

    port: int
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_PATIENCE_S)

    def __call__(self, path: str, body: Any = None) -> tuple[http.client.HTTPResponse, Any]:
        """Ask; return the answer and its JSON."""
        sent = {"content-type": "application/json"} if body is not None else {}
        data = None if body is None else json.dumps(body)
        method = "GET" if body is None else "POST"
        try:
            self._connection.request(method, path, data, {**self.headers, **sent})
            answer = self._connection.getresponse()
        except http.client.RemoteDisconnected:  # nothing was asked for a while
            self._connection.close()
            self._connection.request(method, path, data, {**self.headers, **sent})
            answer = self._connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {content[:500]!r}")
        return answer, json.loads(content)


def until_it_answers(port: int, path: str) -> float:
    """Return when a server answered first."""
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        with contextlib.suppress(OSError, http.client.HTTPException):
            ServerClient(port)(path)
            return time.perf_counter()
        time.sleep(0.005)
    raise RuntimeError(f"nobody answers at {path}")


@contextlib.contextmanager
def _running(argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> Iterator[int]:
    process = subprocess.Popen(argv, env=env, cwd=cwd, start_new_session=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        yield process.pid
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()


class Others:
    """The floor and the peer, in a user's folders.

    Args:
        clusters: how many SkyPilot knows.
    """

    def __init__(self, client: Client, load: Load, clusters: int) -> None:
        self._client = client
        self.has_skypilot = SKYPILOT.install(load)
        self._home = client.folder / "skypilot"
        self._home.mkdir()
        self._env = SKYPILOT.env | {
            "HOME": str(self._home), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
        }  # fmt: skip
        if self.has_skypilot:
            subprocess.run([str(SKYPILOT.python), str(_CLUSTERS), str(clusters)], env=self._env,
                           cwd=self._home, check=True, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)  # fmt: skip

    @contextlib.contextmanager
    def empty(self) -> Iterator[tuple[int, int]]:
        """Run the floor; yield its port and process."""
        port = free_port()
        argv = [sys.executable, "-c", _EMPTY, str(port)]
        with _running(argv, self._client.env, self._client.folder) as pid:
            yield port, pid

    @contextlib.contextmanager
    def skypilot(self) -> Iterator[tuple[int, int]]:
        """Run SkyPilot's server; yield its port and process."""
        port = free_port()
        argv = [str(SKYPILOT.python), "-m", "sky.server.server", "--host=127.0.0.1",
                f"--port={port}"]  # fmt: skip
        with _running(argv, self._env, self._home) as pid:
            yield port, pid


def memory_mb(pid: int) -> float:
    """Return what a process and its children hold."""
    total, waiting = 0, [pid]
    while waiting:
        one = waiting.pop()
        for line in Path(f"/proc/{one}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                total += int(line.split()[1])
        for task in Path(f"/proc/{one}/task").iterdir():
            waiting += map(int, (task / "children").read_text().split())
    return round(total / 1000)


def connections(pid: int, port: int) -> int:
    """Return how many connections a process has with a port of this machine."""
    mine = set[str]()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            mine.add(str(each.readlink()))
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return sum(
        int(row[2].rpartition(":")[2], 16) == port and f"socket:[{row[9]}]" in mine for row in rows
    )
