"""How fast a training is seen (`python -m benchmarks.metrics`).

Twenty runs of a million points each, one of which is written here line by line, as a learner
writes it, with 100 spikes of one point.

    view_open_bytes  what opening the twenty moves from the site; peer: rsync of the folders
    view_reopen_bytes  what opening them once more moves, from what is kept on this machine
    view_live_bytes  what a look at a quiet run moves; peer: rsync
    view_open_data   opening the twenty, until each curve is there; floor: reading the files locally
    watch_frame      a frame of `dlctl watch` with 20 runs of 50,000 points; floor: of 100 points
    parse_lines      log lines through three groups of regex_extractor; peer: the plain way, one
                     `re.match` a group on a joined window; floor: splitting the lines
    sample_cost      of a core, by the collector beside a learner; floor: a sleeping Python
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from node_job import Job  # type: ignore[import-not-found]

from benchmarks import metrics_pages
from benchmarks.report import Load, Result, compare, leave_out, main, rounds
from dlctl import contract
from dlctl.contract import State
from dlctl.contract.metrics import MetricsLine, Source
from dlctl.outputs.insight import insight
from dlctl.outputs.metrics.reader import MetricsReader
from dlctl.record import Record
from dlctl.series.replays import Origin
from dlctl.series.run import Run
from dlctl.terminal.frame import View, frame
from dlctl.terminal.words import Shown
from dlctl.transport.local import LocalTransport
from learner.collect.parsers.regex import Group, RegexParser
from learner.job.metrics import MetricsFile

_RUNS = 20
_POINTS = 1_000_000, 100_000, 2000
_SHOWN = 50_000, 50_000, 500
_LINES = 100_000, 100_000, 1000
_BESIDE_S = 60.0, 5.0, 0.5
_ROUNDS, _FRAME_ROUNDS = rounds(5, 1), rounds(15)
_SPIKES = 100


class Counted(LocalTransport):
    """Counts the bytes of scripts and answers, as they pass through an SSH connection."""

    def __init__(self) -> None:
        super().__init__()
        self.moved_bytes = 0

    def run(self, script: str, **how: Any) -> Any:
        """Run a script; count it and its answer."""
        end = super().run(script, **how)
        self.moved_bytes += len(script) + len(end.stdout)
        return end


def curve(points: int) -> Iterator[float]:
    """Yield a loss with 100 spikes of one point, evenly apart."""
    draw, apart = random.Random(1), points // _SPIKES
    for step in range(points):
        spike = step % apart == apart // 2
        yield 50.0 if spike else math.exp(-step * 5 / points) + draw.gauss(0, 0.02)


def write_run(folder: Path, points: int) -> None:
    """Write a run of one series."""
    folder.mkdir()
    file = MetricsFile(folder / contract.metrics_file(1, 0))
    lines = []
    for step, loss in enumerate(curve(points)):
        lines.append(MetricsLine(step, 1, 1e9 + step / 10, {"loss": loss}))
        if len(lines) == 1000:
            file.add_all(lines)
            lines = []
    file.add_all(lines)


def write_runs(folder: Path, points: int) -> list[Record]:
    """Write the runs; all are copies of the first."""
    write_run(folder / "run-0", points)
    for number in range(1, _RUNS):
        shutil.copytree(folder / "run-0", folder / f"run-{number}")
    return [
        Record(
            f"run-{n}",
            "run",
            "local",
            "",
            str(folder / f"run-{n}"),
            "2026-01-01T00:00:00+00:00",
            state=State.HALTED,
        )
        for n in range(_RUNS)
    ]


def measure(load: Load) -> Iterator[Result]:
    """Yield the results."""
    with (
        tempfile.TemporaryDirectory(prefix="dlctl-bench-") as temporary,
        patch.dict(os.environ, XDG_CACHE_HOME="/dev/null"),  # nothing is kept between the runs
    ):
        records = write_runs(Path(temporary), _POINTS[load])
        with patch.dict(os.environ, XDG_CACHE_HOME=f"{temporary}/cache"):
            moved = list(_bytes(records, Path(temporary)))
        yield from moved
        yield _open_data(records, load)
        if shutil.which("chromium"):
            yield from metrics_pages.measure(records, Path(temporary), _POINTS[load], load)
        else:
            leave_out("view_start", "view_open_20x1m", "view_spikes", "view_lag", "tensorboard",
                      why="chromium is not installed")  # fmt: skip
    yield _frame(load)
    yield from _parse(load)
    yield _sample_cost(_BESIDE_S[load])


def _bytes(records: list[Record], folder: Path) -> Iterator[Result]:
    transport = Counted()
    readers = [MetricsReader(record) for record in records]
    for reader in readers:
        reader.refresh(transport)
    opened, transport.moved_bytes = transport.moved_bytes, 0
    for reader in readers[:1]:
        reader.refresh(transport)
    live, transport.moved_bytes = transport.moved_bytes, 0
    for record in records:
        MetricsReader(record).refresh(transport)
    whole = sum(path.stat().st_size for path in folder.rglob("*.jsonl"))
    rsync = {}
    if shutil.which("rsync"):
        rsync["rsync"] = float(_rsync_bytes(folder))
    else:
        leave_out("rsync", why="it is not installed")
    yield Result("view_open_bytes", "B", float(opened), float(whole), rsync)
    yield Result("view_reopen_bytes", "B", float(transport.moved_bytes), 0.0)
    yield Result("view_live_bytes", "B", float(live), 0.0)


def _rsync_bytes(folder: Path) -> int:
    """Return what rsync sends of the metrics, compressed."""
    with tempfile.TemporaryDirectory() as target:
        done = subprocess.run(
            ["rsync", "-az", "--stats", "--include=*/", "--include=*.jsonl", "--exclude=*",
             f"{folder}/", target], check=True, capture_output=True, text=True,
        )  # fmt: skip
    line = next(x for x in done.stdout.splitlines() if x.startswith("Total bytes sent"))
    return int(line.rpartition(":")[2].replace(",", "").strip())


def _open_data(records: list[Record], load: Load) -> Result:
    transport = LocalTransport()

    def ours() -> float:
        begin = time.perf_counter()
        for record in records:
            reader = MetricsReader(record)
            reader.refresh(transport)
            assert sum(reader.run.named("loss")[0].points.count) > 0
        return time.perf_counter() - begin

    def floor() -> float:
        begin = time.perf_counter()
        for record in records:
            Path(record.job_dir, contract.metrics_file(1, 0)).read_bytes()
        return time.perf_counter() - begin

    return compare("view_open_data", ours, floor, rounds=_ROUNDS[load])


def _frame(load: Load) -> Result:
    def some(points: int) -> list[Shown]:
        return [_shown(number, points) for number in range(_RUNS)]

    def timed(shown: list[Shown]) -> Callable[[], float]:
        def once() -> float:
            begin = time.perf_counter()
            frame(shown, View(), 160, 45, 1e9)
            return (time.perf_counter() - begin) * 1000

        return once

    return compare("watch_frame", timed(some(_SHOWN[load])), timed(some(100)),
                   rounds=_FRAME_ROUNDS[load], unit="ms")  # fmt: skip


def _shown(number: int, points: int) -> Shown:
    run, draw = Run(f"run-{number}"), random.Random(number)
    for step in range(points):
        loss = math.exp(-step * 5 / points) + draw.gauss(0, 0.02)
        line = MetricsLine(step, 1, 1e9 + step, {"loss": loss})
        run.add(Origin(1, 0, Source.LOOP), line)
    record = Record(run.training_id, "run", "local", "", "", "", state=State.TRAINING)
    return Shown(record, run, insight(run, record, None, [], 2e9))


_STAMP = "I1027 12:00:00.123456    42 "
GROUPS: dict[str, Any] = {
    "train": {
        "regex": r"%{GLOG_STAMP:t}.*Iteration %{INT:i} .*loss = %{FLOAT:loss}",
        "meta": {"time": "$t"},
        "scalars": {"loss": {"type": "FLOAT", "value": "$loss"}},
        "etimes": {"iteration": {"type": "INT", "value": "$i"}},
    },
    "rate": {
        "regex": r"%{GLOG_STAMP:t}.*Iteration %{INT:i}, lr = %{FLOAT:lr}",
        "meta": {"time": "$t"},
        "scalars": {"lr": {"type": "FLOAT", "value": "$lr"}},
        "etimes": {"iteration": {"type": "INT", "value": "$i"}},
    },
    "test": {
        "regex": r"%{GLOG_STAMP:t}.*Test net output #0: accuracy = %{FLOAT:acc}",
        "meta": {"time": "$t"},
        "scalars": {"accuracy": {"type": "FLOAT", "value": "$acc"}},
    },
}
"""In the manner of FfDL's manifest for Caffe."""


def log_lines(count: int) -> list[str]:
    """Return a log like Caffe's: one line in five is a measurement."""
    found = []
    for i in range(count):
        if i % 5 == 0:
            found.append(f"{_STAMP}solver.cpp:218] Iteration {i} (9 iter/s), loss = {1 / (i + 1)}")
        elif i % 50 == 1:
            found.append(f"{_STAMP}sgd_solver.cpp:105] Iteration {i}, lr = 0.01")
        elif i % 50 == 2:
            found.append(
                f"{_STAMP}solver.cpp:397]   Test net output #0: accuracy = 0.{i % 100:02d}"
            )
        else:
            found.append(f"{_STAMP}net.cpp:86] Snapshotting to a binary proto file number {i}")
    return found


def _parse(load: Load) -> Iterator[Result]:
    text = "".join(f"{line}\n" for line in log_lines(_LINES[load]))
    count = text.count("\n")
    groups = [Group.of(name, plain) for name, plain in GROUPS.items()]

    def lines_per_s(work: Callable[[], object]) -> Callable[[], float]:
        def once() -> float:
            begin, taken_s, done = time.process_time(), 0.0, 0
            while not taken_s:  # some machines count processor time in ticks
                work()
                done += count
                taken_s = time.process_time() - begin
            return done / taken_s

        return once

    def ours() -> list[MetricsLine]:
        return RegexParser(groups, lambda _: None).feed(text)

    assert [x.values for x in ours()] == [x.values for x in _plainly(groups, text)]
    yield compare(
        "parse_lines", lines_per_s(ours), lines_per_s(lambda: text.split("\n")),
        {"plain": lines_per_s(lambda: _plainly(groups, text))}, rounds=_ROUNDS[load],
        unit="lines/s",
    )  # fmt: skip


def _plainly(groups: list[Group], text: str) -> list[MetricsLine]:
    """Parse the plain way: a `match` of each group on the joined window, at each line."""
    window: deque[str] = deque(maxlen=4)
    found = []
    for line in text.splitlines(keepends=True):
        window.append(line)
        while window and (first := _first_match(groups, "".join(window))):
            group, match = first
            if (record := group.record(match, "")) is not None:
                found.append(record)
            for _ in range(match[0].count("\n") + 1):
                window.popleft()
    return found


def _first_match(groups: list[Group], text: str) -> tuple[Group, re.Match[str]] | None:
    for group in groups:
        if (match := group.pattern.match(text)) is not None:
            return group, match
    return None


def _sample_cost(lasts_s: float) -> Result:
    """Return the share of a core that the collector takes, beside that of a sleeping Python."""
    with tempfile.TemporaryDirectory() as temporary:
        job = Job(Path(temporary), f"sleep {lasts_s + 10:.0f}")
        supervisor = job.start_afresh()
        sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        try:
            collector = _collector(job.dir)
            time.sleep(2)
            before = _cpu_s(collector)
            time.sleep(lasts_s)
            ours = (_cpu_s(collector) - before) / lasts_s
            floor = _cpu_s(sleeper.pid) / lasts_s
        finally:
            sleeper.kill()
            sleeper.wait()
            supervisor.terminate()
            supervisor.communicate()
    return Result("sample_cost", "of a core", round(ours, 6), round(floor, 6))


def _collector(job_dir: Path) -> int:
    """Return the process that collects beside the learner of a job, once it has started."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes()
                if b"learner.collect" in words and str(job_dir).encode() in words:
                    return int(process.name)
        time.sleep(0.05)
    raise RuntimeError("no collector has started")


def _cpu_s(pid: int) -> float:
    """Return the processor time of a process, in seconds, finer than clock ticks."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


if __name__ == "__main__":
    main(measure)
