"""The REST interface beside the bare command, an empty route and SkyPilot (`… benchmarks.serve`).

A thousand trainings are in the record; twenty of them are at a real Slurm over SSH, and a client
follows the log of each, into which two lines come a second. All but `serve_start` and `serve_idle`
is measured meanwhile. The floor is a Starlette application with one empty route, under the same
uvicorn; SkyPilot's API server lists as many clusters.

    serve_start     from the command until /api/v1/health answers; peer: SkyPilot's /api/health
    serve_page      a list of a hundred trainings of the thousand, p95; peer: `dlctl list --json`
    serve_list      all thousand by pages, p95; peers: `dlctl list`, SkyPilot's `/status` and its answer
    serve_log_lag   a line is written on the node → a client has its event, p95; floor: `ssh tail -F`
    serve_memory    what the process holds at the end
    serve_idle      connections to the site that the server has a minute after its last client left
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rest_server import RestServer, free_port  # type: ignore[import-not-found]

from benchmarks.client import Client, on_cluster
from benchmarks.peer_environment import PeerEnvironment
from benchmarks.report import Load, Result, compare, leave_out, main, rounds
from benchmarks.start_up import dlctl_argv
from dlctl.contract import State
from dlctl.record import RecordStore

_TRAININGS, _FOLLOWERS = (1000, 1000, 30), (20, 20, 2)
_ASKED, _LINES = (200, 40, 2), (120, 20, 2)
_START_ROUNDS = rounds(7, 1)
_LINES_PER_S = 2
_IDLE_S = 75.0
"""A connection to a site is kept for 60 s."""
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
class Asked:
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
        said = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {said[:500]!r}")
        return answer, json.loads(said)


class Log:
    """The log of a training that waits; the benchmark writes it."""

    def __init__(self, job_dir: Path) -> None:
        self.training_id, self.path = job_dir.name, job_dir / "attempts/1/learner-0.log"
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, text: str) -> None:
        """Append some text, whole."""
        with self.path.open("a") as file:
            file.write(text)


def _until_it_answers(port: int, path: str) -> float:
    """Return when a server answered first."""
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        with contextlib.suppress(OSError, http.client.HTTPException):
            Asked(port)(path)
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


class Bench:
    """The servers, each in its user's folders."""

    def __init__(self, client: Client, load: Load) -> None:
        self.load, self.client = load, client
        self.ours = RestServer(client.env | {"DLCTL_SITE": "testbed"}, client.folder, free_port())
        self.has_skypilot = SKYPILOT.install(load)
        self._home = client.folder / "skypilot"
        self._home.mkdir()
        self._sky_env = SKYPILOT.env | {
            "HOME": str(self._home), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
        }  # fmt: skip
        if self.has_skypilot:
            self._python(str(_CLUSTERS), str(_TRAININGS[load]))

    def _python(self, *argv: str) -> None:
        subprocess.run([str(SKYPILOT.python), *argv], env=self._sky_env, cwd=self._home, check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip

    @contextlib.contextmanager
    def empty(self) -> Iterator[tuple[int, int]]:
        """Run the floor; yield its port and process."""
        port = free_port()
        argv = [sys.executable, "-c", _EMPTY, str(port)]
        with _running(argv, self.client.env, self.client.folder) as pid:
            yield port, pid

    @contextlib.contextmanager
    def skypilot(self) -> Iterator[tuple[int, int]]:
        """Run SkyPilot's server; yield its port and process."""
        port = free_port()
        argv = [str(SKYPILOT.python), "-m", "sky.server.server", "--host=127.0.0.1",
                f"--port={port}"]  # fmt: skip
        with _running(argv, self._sky_env, self._home) as pid:
            yield port, pid

    def start_s(self) -> float:
        """Time our start."""
        began = time.perf_counter()
        self.ours.start()
        ended = _until_it_answers(self.ours.port, "/api/v1/health")
        self.ours.stop()
        return ended - began

    def start_of(self, server: Callable[[], Any], path: str) -> float:
        """Time another's start."""
        began = time.perf_counter()
        with server() as (port, _):
            return _until_it_answers(port, path) - began

    def measure(self) -> Iterator[Result]:
        """Yield each result."""
        peers = {"skypilot": lambda: self.start_of(self.skypilot, "/api/health")}
        yield compare("serve_start", self.start_s, lambda: self.start_of(self.empty, "/"),
                      peers if self.has_skypilot else {}, rounds=_START_ROUNDS[self.load])  # fmt: skip
        logs = self._submit()
        self.ours.start()
        try:
            with self.empty() as floor, contextlib.ExitStack() as kept:
                sky = kept.enter_context(self.skypilot()) if self.has_skypilot else None
                yield from self._beside_followers(logs, floor, sky)
            yield self._idle()
        finally:
            self.ours.stop()

    def _submit(self) -> list[Log]:
        """Fill the record; return the logs of the trainings that are at the site."""
        self.client.use_root("dl-serve")
        for _ in range(_FOLLOWERS[self.load]):
            self.client.submit()
        store = RecordStore(Path(self.client.env["XDG_STATE_HOME"], "dlctl/trainings.db"))
        live = store.all()
        store.add(*(
            dataclasses.replace(live[0], training_id=f"ended-{number:08d}", state=State.COMPLETED)
            for number in range(_TRAININGS[self.load] - len(live))
        ))  # fmt: skip
        return [Log(self.client.cluster.home / "dl-serve/jobs" / one.training_id) for one in live]

    def _beside_followers(
        self, logs: Sequence[Log], floor: tuple[int, int], sky: tuple[int, int] | None
    ) -> Iterator[Result]:
        ages, ended = list[float](), threading.Event()
        token = {"authorization": f"Bearer {self.ours.token}"}
        ours, empty = Asked(self.ours.port, token), Asked(floor[0])
        followers = [threading.Thread(target=self._follow, args=(log, ages)) for log in logs]
        for log in logs:
            log.write("begins\n")
        for each in followers:
            each.start()
        writer = threading.Thread(target=_write, args=(logs, ended))
        writer.start()
        count = _ASKED[self.load]
        page = {
            "\0ours": lambda: ours("/api/v1/trainings?limit=100"), "\0floor": lambda: empty("/"),
        }  # fmt: skip
        whole: dict[str, Callable[[], Any]] = {
            "\0ours": lambda: _all(ours), "\0floor": lambda: empty("/")
        }
        command = {"dlctl list --json": lambda: self.client.dlctl("list", "--json")}
        if sky is not None:
            _until_it_answers(sky[0], "/api/health")
            theirs = Asked(sky[0])
            whole["skypilot"] = lambda: _clusters(theirs)
        try:
            yield _result("serve_page", "s", page, count, command)
            yield _result("serve_list", "s", whole, count // 4, command)
            ages.clear()
            time.sleep(_LINES[self.load] / _LINES_PER_S)
            seen = sorted(ages)
            tail = sorted(self._tail(logs[0]))
            yield Result("serve_log_lag", "s", _p95(seen), _p95(tail), runs=len(seen))
            peer = {"skypilot": _memory_mb(sky[1])} if sky else {}
            assert self.ours.process is not None
            yield Result("serve_memory", "MB", _memory_mb(self.ours.process.pid),
                         _memory_mb(floor[1]), peer)  # fmt: skip
        finally:
            ended.set()
            writer.join()
            for log in logs:
                log.write("ends\n")
            for each in followers:
                each.join()

    def _follow(self, log: Log, ages: list[float]) -> None:
        path = f"/api/v1/trainings/{log.training_id}/logs"
        for _, _, lines in self.ours.events(path):
            now = time.time()
            for line in (each["line"] for each in lines):
                if line == "ends":
                    return
                if line.startswith("at "):
                    ages.append(now - float(line[3:]))

    def _tail(self, log: Log) -> Iterator[float]:
        """Yield the age of some lines at a reader beside the file."""
        argv = ["ssh", "-F", str(self.client.cluster.ssh_config), self.client.cluster.host,
                "tail", "-n", "0", "-F", str(log.path)]  # fmt: skip
        with subprocess.Popen(argv, env=self.client.env, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL) as reader:  # fmt: skip
            assert reader.stdout is not None
            for _, line in zip(range(_LINES[self.load]), reader.stdout, strict=False):
                yield time.time() - float(line[3:])
            reader.terminate()

    def _idle(self) -> Result:
        assert self.ours.process is not None
        if self.load is not Load.SMOKE:
            time.sleep(_IDLE_S)
        count = _connections(self.ours.process.pid, self.client.cluster.port)
        return Result("serve_idle", "connections", count, 0)


def _all(ours: Asked) -> None:
    cursor = ""
    while cursor is not None:
        after = f"&cursor={quote(cursor)}" if cursor else ""
        cursor = ours(f"/api/v1/trainings?limit=500{after}")[1].get("next")


def _clusters(theirs: Asked) -> None:
    """Ask SkyPilot as its client does: a request, and then its answer."""
    answer, _ = theirs("/status", {"refresh": "NONE"})
    theirs(f"/api/get?request_id={answer.headers['X-Skypilot-Request-ID']}")


def _result(
    what: str, unit: str, candidates: Mapping[str, Callable[[], Any]], count: int,
    rare: Mapping[str, Callable[[], float]],
) -> Result:  # fmt: skip
    """Ask all in turn; the rare ones, which cost much, a tenth as often."""
    seen: dict[str, list[float]] = {name: [] for name in (*candidates, *rare)}
    for turn in range(count):
        for name, ask in candidates.items():
            began = time.perf_counter()
            ask()
            seen[name].append(time.perf_counter() - began)
        for name, run in rare.items():
            if turn % 10 == 0:
                seen[name].append(run())
    middle = {name: _p95(sorted(values)) for name, values in seen.items()}
    return Result(what, unit, middle.pop("\0ours"), middle.pop("\0floor"), middle, count)


def _p95(values: Sequence[float]) -> float:
    return round(values[min(len(values) - 1, int(0.95 * len(values)))], 4)


def _write(logs: Sequence[Log], ended: threading.Event) -> None:
    while not ended.wait(1 / _LINES_PER_S / len(logs)):
        log = logs[0]
        logs = [*logs[1:], log]
        log.write(f"at {time.time()}\n")


def _memory_mb(pid: int) -> float:
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


def _connections(pid: int, port: int) -> int:
    """Return how many connections a process has with a port of this machine."""
    mine = set[str]()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            mine.add(os.readlink(each))
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return sum(
        int(row[2].rpartition(":")[2], 16) == port and f"socket:[{row[9]}]" in mine for row in rows
    )


def measure(load: Load) -> Iterator[Result]:
    """Yield each result as soon as it is known; nothing if the cluster's programs are missing."""
    with on_cluster("serve_") as client:
        if client is not None:
            yield from Bench(client, load).measure()


if __name__ == "__main__":
    main(measure)
