"""How fast a training is seen (`python -m benchmarks.metrics`).

Twenty runs of a million points each, one of which is written here line by line, as a learner
writes it, with 100 spikes of one point.

    view_open_bytes  what opening the twenty moves from the site; peer: rsync of the folders
    view_live_bytes  what a look at a quiet run moves; peer: rsync
    view_open_data   opening the twenty, until each curve is there; floor: reading the files locally
    watch_frame      a frame of `dlctl watch` with 20 runs of 50,000 points; floor: of 100 points
    parse_lines      log lines through three groups of regex_extractor; peer: the plain way, one
                     `re.match` a group on a joined window; floor: splitting the lines
    sample_cost      of a core, by the collector beside a learner; floor: a sleeping Python
"""

from __future__ import annotations

import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.report import Result, compare, main
from dlctl import contract
from dlctl.contract import State
from dlctl.contract.metrics import MetricsLine, Source
from dlctl.outputs.insight import insight
from dlctl.outputs.metrics import MetricsReader
from dlctl.record import Record
from dlctl.series.replays import Origin
from dlctl.series.run import Run
from dlctl.terminal.frame import Shown, View, frame
from dlctl.transport.local import LocalTransport
from learner.job.metrics import MetricsFile

_RUNS = 20
_POINTS = 1_000_000
_SPIKES = 100
_BUDGET_BYTES = 48 * 1024
"""Of bins a run: what the dashboard asks for with twenty runs."""


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


def write_run(folder: Path, points: int) -> set[int]:
    """Write a run of one series; return the steps of its spikes."""
    draw = random.Random(1)
    spikes = set(draw.sample(range(points), _SPIKES))
    folder.mkdir()
    file = MetricsFile(folder / contract.metrics_file(1, 0))
    lines = []
    for step in range(points):
        loss = 50.0 if step in spikes else math.exp(-step * 5 / points) + draw.gauss(0, 0.02)
        lines.append(MetricsLine(step, 1, 1e9 + step / 10, {"loss": loss}))
        if len(lines) == 1000:
            file.add_all(lines)
            lines = []
    file.add_all(lines)
    return spikes


def write_runs(folder: Path, points: int) -> list[Record]:
    """Write the runs; all are copies of the first."""
    write_run(folder / "run-0", points)
    for number in range(1, _RUNS):
        shutil.copytree(folder / "run-0", folder / f"run-{number}")
    return [
        Record(f"run-{n}", "run", "local", "", str(folder / f"run-{n}"), "") for n in range(_RUNS)
    ]


def measure(quick: bool = False) -> Iterator[Result]:
    """Yield the results."""
    runs = 1 if quick else 5
    with tempfile.TemporaryDirectory(prefix="dlctl-bench-") as temporary:
        records = write_runs(Path(temporary), _POINTS // (10 if quick else 1))
        yield from _bytes(records, Path(temporary))
        yield _open_data(records, runs)
    yield _frame(3 * runs)
    yield from _parse(runs)
    yield _sample_cost(5.0 if quick else 60.0)


def _bytes(records: list[Record], folder: Path) -> Iterator[Result]:
    transport = Counted()
    readers = [MetricsReader(record, _BUDGET_BYTES) for record in records]
    for reader in readers:
        reader.refresh(transport)
    opened, transport.moved_bytes = transport.moved_bytes, 0
    for reader in readers[:1]:
        reader.refresh(transport)
    whole = sum(path.stat().st_size for path in folder.rglob("*.jsonl"))
    rsync = {"rsync": float(_rsync_bytes(folder))} if shutil.which("rsync") else {}
    yield Result("view_open_bytes", "B", float(opened), float(whole), rsync)
    yield Result("view_live_bytes", "B", float(transport.moved_bytes), 0.0)


def _rsync_bytes(folder: Path) -> int:
    """Return what rsync sends of the metrics, compressed."""
    with tempfile.TemporaryDirectory() as target:
        done = subprocess.run(
            ["rsync", "-az", "--stats", "--include=*/", "--include=*.jsonl", "--exclude=*",
             f"{folder}/", target], check=True, capture_output=True, text=True,
        )  # fmt: skip
    line = next(x for x in done.stdout.splitlines() if x.startswith("Total bytes sent"))
    return int(line.rpartition(":")[2].replace(",", "").strip())


def _open_data(records: list[Record], runs: int) -> Result:
    transport = LocalTransport()

    def ours() -> float:
        begin = time.perf_counter()
        for record in records:
            reader = MetricsReader(record, _BUDGET_BYTES)
            reader.refresh(transport)
            assert sum(reader.run.named("loss")[0].points.count) > 0
        return time.perf_counter() - begin

    def floor() -> float:
        begin = time.perf_counter()
        for record in records:
            Path(record.job_dir, contract.metrics_file(1, 0)).read_bytes()
        return time.perf_counter() - begin

    return compare("view_open_data", ours, floor, runs=runs, warm_up=1)


def _frame(runs: int) -> Result:
    def some(points: int) -> list[Shown]:
        return [_shown(number, points) for number in range(_RUNS)]

    def timed(shown: list[Shown]) -> Callable[[], float]:
        def once() -> float:
            begin = time.perf_counter()
            frame(shown, View(), 160, 45, 1e9)
            return (time.perf_counter() - begin) * 1000

        return once

    return compare(
        "watch_frame", timed(some(50_000)), timed(some(100)), runs=runs, warm_up=2, unit="ms"
    )


def _shown(number: int, points: int) -> Shown:
    run, draw = Run(f"run-{number}"), random.Random(number)
    for step in range(points):
        loss = math.exp(-step * 5 / points) + draw.gauss(0, 0.02)
        line = MetricsLine(step, 1, 1e9 + step, {"loss": loss})
        run.add(Origin(1, 0, Source.LOOP), line)
    record = Record(run.training_id, "run", "local", "", "", "", state=State.TRAINING)
    return Shown(record, run, insight(run, record, None, [], 2e9))


GROUPS: dict[str, Any] = {
    "train": {
        "regex": r"Iteration %{INT:i}, loss = %{FLOAT:loss}",
        "scalars": {"loss": {"type": "FLOAT", "value": "$loss"}},
        "etimes": {"iteration": {"type": "INT", "value": "$i"}},
    },
    "rate": {
        "regex": r"Iteration %{INT:i}, lr = %{FLOAT:lr}",
        "scalars": {"lr": {"type": "FLOAT", "value": "$lr"}},
        "etimes": {"iteration": {"type": "INT", "value": "$i"}},
    },
    "test": {
        "regex": r"Test net output #0: accuracy = %{FLOAT:acc}",
        "scalars": {"accuracy": {"type": "FLOAT", "value": "$acc"}},
    },
}
_SAID = "I1027 12:00:00.123456 7 solver.cpp:228]"


def log_lines(count: int) -> list[str]:
    """Return a log of a solver: one line in five is a measurement."""
    found = []
    for i in range(count):
        if i % 5 == 0:
            found.append(f"Iteration {i}, loss = {1 / (i + 1):.6f}")
        elif i % 50 == 1:
            found.append(f"Iteration {i}, lr = 0.01")
        elif i % 50 == 2:
            found.append(f"Test net output #0: accuracy = 0.{i % 100:02d}")
        else:
            found.append(f"{_SAID} Snapshotting solver state to binary proto file number {i}")
    return found


def _parse(runs: int) -> Iterator[Result]:
    try:
        from benchmarks.metrics_parsing import ours_lines_per_s, plain_lines_per_s
    except ImportError:
        return
    lines = log_lines(100_000)
    text = "\n".join(lines)

    def floor() -> float:
        begin = time.perf_counter()
        count = len(text.split("\n"))
        return count / (time.perf_counter() - begin)

    yield compare(
        "parse_lines", lambda: ours_lines_per_s(lines, GROUPS), floor,
        {"plain": lambda: plain_lines_per_s(lines, GROUPS)}, runs=runs, warm_up=1, unit="lines/s",
    )  # fmt: skip


def _sample_cost(lasts_s: float) -> Result:
    """Return the share of a core that the collector takes beside a process that sleeps."""
    with tempfile.TemporaryDirectory() as temporary:
        job = Path(temporary)
        (job / "attempts/1").mkdir(parents=True)
        (job / "logs").mkdir()
        sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        collector = subprocess.Popen(
            [sys.executable, "-m", "learner.collect", str(job), "1", "0", str(os.getpid())]
        )
        try:
            time.sleep(2)
            before = _cpu_s(collector.pid)
            time.sleep(lasts_s)
            ours = (_cpu_s(collector.pid) - before) / lasts_s
            floor = _cpu_s(sleeper.pid) / lasts_s
        finally:
            for process in (collector, sleeper):
                process.kill()
                process.wait()
    return Result("sample_cost", "of a core", round(ours, 5), round(floor, 5))


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main(measure)
