"""The REST interface beside the bare command, an empty route and SkyPilot (`… benchmarks.serve`).

A thousand trainings are in the record; twenty of them are at a real Slurm over SSH, and a client
follows the log of each, into which two lines come a second. All but `serve_start` and `serve_idle`
is measured meanwhile. The floor is a Starlette application with one empty route, under the same
uvicorn; SkyPilot's API server lists as many clusters.

    serve_start     from the command until /api/v1/health answers; peer: SkyPilot's /api/health
    serve_page      a list of a hundred trainings of the thousand, p95; peer: `dlctl list --json`
    serve_list      all thousand by pages, p95; peers: `dlctl list --json`, SkyPilot's `/status`
    serve_log_lag   a line is written on the node → a client has it, p95; floor: `ssh tail -F`
    serve_memory    what the process holds at the end
    serve_idle      connections to the site that the server has a minute after its last client left
"""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rest_server import RestServer, free_port  # type: ignore[import-not-found]

from benchmarks.client import Client, on_cluster
from benchmarks.report import Load, Result, compare, main, rounds
from benchmarks.serve_servers import Others, ServerClient, connections, memory_mb, until_it_answers
from dlctl.contract import State
from dlctl.record import RecordStore

_TRAININGS, _FOLLOWERS = (1000, 1000, 30), (20, 20, 2)
_PAGES, _LISTS, _LINES = (200, 40, 2), (50, 10, 2), (120, 20, 2)
_START_ROUNDS = rounds(7, 1)
_LINES_PER_S = 2
_IDLE_S = 75.0
"""A connection to a site is kept for 60 s."""


class Log:
    """The log of a training that waits; the benchmark writes it."""

    def __init__(self, job_dir: Path) -> None:
        self.training_id, self.path = job_dir.name, job_dir / "attempts/1/learner-0.log"
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, text: str) -> None:
        """Append some text, whole."""
        with self.path.open("a") as file:
            file.write(text)


class Bench:
    """The servers, each in its user's folders."""

    def __init__(self, client: Client, load: Load) -> None:
        self.load, self.client = load, client
        self.ours = RestServer(client.env | {"DLCTL_SITE": "testbed"}, client.folder, free_port())
        self.others = Others(client, load, _TRAININGS[load])

    def start_s(self) -> float:
        """Time our start."""
        began = time.perf_counter()
        self.ours.start()
        ended = until_it_answers(self.ours.port, "/api/v1/health")
        self.ours.stop()
        return ended - began

    def start_of(self, server: Callable[[], Any], path: str) -> float:
        """Time another's start."""
        began = time.perf_counter()
        with server() as (port, _):
            return until_it_answers(port, path) - began

    def measure(self) -> Iterator[Result]:
        """Yield each result."""
        others, peers = self.others, {}
        if others.has_skypilot:
            peers["skypilot"] = lambda: self.start_of(others.skypilot, "/api/health")
        yield compare("serve_start", self.start_s, lambda: self.start_of(others.empty, "/"), peers,
                      rounds=_START_ROUNDS[self.load])  # fmt: skip
        logs = self._submit()
        self.ours.start()
        try:
            with others.empty() as floor, contextlib.ExitStack() as kept:
                sky = kept.enter_context(others.skypilot()) if others.has_skypilot else None
                yield from self._beside_followers(logs, floor, sky)
            yield self._idle()
        finally:
            self.ours.stop()

    def _submit(self) -> list[Log]:
        """Fill the record; return the logs of the trainings that are at the site."""
        self.client.use_root("dl-serve")
        for _ in range(_FOLLOWERS[self.load]):
            self.client.submit()
        store = RecordStore(Path(self.client.env["XDG_STATE_HOME"], "dlctl/record.db"))
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
        ours, empty = ServerClient(self.ours.port, token), ServerClient(floor[0])
        until_it_answers(floor[0], "/")
        followers = [threading.Thread(target=self._follow, args=(log, ages)) for log in logs]
        for log in logs:
            log.write("begins\n")
        for each in followers:
            each.start()
        writer = threading.Thread(target=_write, args=(logs, ended))
        writer.start()
        page = {
            "\0ours": lambda: ours("/api/v1/trainings?limit=100"), "\0floor": lambda: empty("/"),
        }  # fmt: skip
        whole: dict[str, Callable[[], Any]] = {
            "\0ours": lambda: _all(ours),
            "\0floor": lambda: empty("/"),
        }
        command = {"dlctl list --json": lambda: self.client.dlctl("list", "--json")}
        if sky is not None:
            until_it_answers(sky[0], "/api/health")
            theirs = ServerClient(sky[0])
            whole["skypilot"] = lambda: _clusters(theirs)
        try:
            yield _result("serve_page", "s", page, _PAGES[self.load], command)
            yield _result("serve_list", "s", whole, _LISTS[self.load], command)
            ages.clear()
            time.sleep(_LINES[self.load] / _LINES_PER_S)
            lags = sorted(ages)
            tail = sorted(self._tail(logs[0]))
            yield Result("serve_log_lag", "s", _p95(lags), _p95(tail), runs=len(lags))
            peer = {"skypilot": memory_mb(sky[1])} if sky else {}
            assert self.ours.process is not None
            yield Result("serve_memory", "MB", memory_mb(self.ours.process.pid),
                         memory_mb(floor[1]), peer)  # fmt: skip
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
        count = connections(self.ours.process.pid, self.client.cluster.port)
        return Result("serve_idle", "connections", count, 0)


def _all(ours: ServerClient) -> None:
    cursor = ""
    while cursor is not None:
        after = f"&cursor={quote(cursor)}" if cursor else ""
        cursor = ours(f"/api/v1/trainings?limit=500{after}")[1].get("next")


def _clusters(theirs: ServerClient) -> None:
    """Ask SkyPilot as its client does: a request, and then its answer."""
    answer, _ = theirs("/status", {"refresh": "NONE"})
    theirs(f"/api/get?request_id={answer.headers['X-Skypilot-Request-ID']}")


def _result(
    what: str, unit: str, candidates: Mapping[str, Callable[[], Any]], count: int,
    rare: Mapping[str, Callable[[], float]],
) -> Result:  # fmt: skip
    """Ask all in turn; the rare ones, which cost much, a tenth as often."""
    samples: dict[str, list[float]] = {name: [] for name in (*candidates, *rare)}
    for turn in range(count):
        for name, ask in candidates.items():
            began = time.perf_counter()
            ask()
            samples[name].append(time.perf_counter() - began)
        for name, run in rare.items():
            if turn % 10 == 0:
                samples[name].append(run())
    middle = {name: _p95(sorted(values)) for name, values in samples.items()}
    return Result(what, unit, middle.pop("\0ours"), middle.pop("\0floor"), middle, count)


def _p95(values: Sequence[float]) -> float:
    return round(values[min(len(values) - 1, int(0.95 * len(values)))], 4)


def _write(logs: Sequence[Log], ended: threading.Event) -> None:
    while not ended.wait(1 / _LINES_PER_S / len(logs)):
        log = logs[0]
        logs = [*logs[1:], log]
        log.write(f"at {time.time()}\n")


def measure(load: Load) -> Iterator[Result]:
    """Yield each result as soon as it is known; nothing if the cluster's programs are missing."""
    with on_cluster("serve_") as client:
        if client is not None:
            yield from Bench(client, load).measure()


if __name__ == "__main__":
    main(measure)
