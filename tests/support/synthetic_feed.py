"""Made trainings for the dashboard's tests and pictures: the same numbers at each run."""

from __future__ import annotations

import asyncio
import math
import random
import threading
from array import array
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from dlctl.contract import State
from dlctl.contract.metrics import EventKind, MetricsLine, Source
from dlctl.dashboard.feed import Refused, Unknown, last_lines, row
from dlctl.live.sites import Versions
from dlctl.record import Record
from dlctl.series import Key, Run
from dlctl.series.answers import Known, Saved, answers
from dlctl.series.replays import Origin
from dlctl.series.utilisation import sentences, use_of
from dlctl.service.verbs import offers

T0 = 1_790_000_000.0
NOW_S = T0 + 580
"""When the answers are given."""
_LATE_S = 145.0
"""How much later the second attempt of `resumed` does a step than the first would have."""
HTML = '<img src=x onerror="window.owned=1">'
EVIL = f"{HTML}\u202egpj.exe\x1b[2J"
"""A name that also turns the direction of writing, and gives a terminal an order."""
SHOWN = f"{HTML}\\u202egpj.exe\\u001b[2J"
"""What a page shows of it."""


class SyntheticFeed:
    """Trainings in memory that grow when told to."""

    def __init__(self) -> None:
        self.versions = Versions()
        self.looked: list[tuple[str, ...]] = []
        self.acts: list[tuple[str, str, dict[str, Any]]] = []
        self.lines: list[str] = []
        self.searches: dict[str, dict[str, Any]] = {}
        """By the id of its hub: what a page shows of a search."""
        self._lock = threading.RLock()
        self._runs: dict[str, Run] = {}
        self._records: dict[str, dict[str, Any]] = {}
        self._details: dict[str, dict[str, Any]] = {}

    def add(self, run: Run, **known: Any) -> None:
        """Add a training."""
        record = {
            "training_id": run.training_id, "name": run.training_id.split("-")[0], "site": "alps",
            "state": "COMPLETED", "reason": "", "created_at": T0, "attempt": 1, "epochs": 0,
            "epoch": None, "step": run.last_step, "done": 1.0, "loss": None, "stale_since": None,
            "started_at": T0, "ended_at": T0 + 900, "folder": "/home/ada/digits", "hint": "",
            "job_dir": f"/scratch/ada/jobs/{run.training_id}", "job_id": "41723", "seen_at": T0,
        }  # fmt: skip
        details = known.pop("details", {})
        self._runs[run.training_id] = run
        self._records[run.training_id] = record | known
        self._details[run.training_id] = details

    def trainings(self) -> list[dict[str, Any]]:
        with self._lock:
            rows = [row(self._record(name), run) for name, run in self._runs.items()]
        return rows[::-1]

    def details(self, training_id: str) -> dict[str, Any]:
        with self._lock, self.run(training_id) as run:
            details, record = self._details[training_id], self._record(training_id)
            saved = [
                Saved(c["step"], c["written_at"], c["size_bytes"])
                for c in details.get("checkpoints", [])
            ]
            meaning = {"answers": [asdict(a) for a in answers(run, Known(NOW_S, 10, saved))],
                       "utilisation": sentences(use_of(run), None)}  # fmt: skip
            return details | meaning | row(record, run) | {
                "offers": [asdict(each) for each in offers(record)], "hint": record.hint,
                "job_dir": record.job_dir, "folder": record.folder, "job_id": record.job_id,
            }  # fmt: skip

    def _record(self, training_id: str) -> Record:
        known = self._records[training_id]
        created_at = datetime.fromtimestamp(known["created_at"], timezone.utc).isoformat()
        return Record(**known | {"state": State(known["state"]), "created_at": created_at})

    @contextmanager
    def run(self, training_id: str) -> Iterator[Run]:
        if training_id not in self._runs:
            raise Unknown(f"no training {training_id!r} is known here")
        with self._lock:
            yield self._runs[training_id]

    def search(self, training_id: str) -> dict[str, Any]:
        with self._lock:
            if training_id not in self.searches:
                raise Unknown(f"{training_id} is a training, and no search")
            return self.searches[training_id]

    def refine(self, training_id: str, begin: float, end: float, width: int) -> None:
        """Bring nothing: all points are known."""

    def log_tail(self, training_id: str, lines: int) -> list[dict[str, Any]]:
        pieces = [{"attempt": 2, "source": "learner-0", "text": f"{each}\n"} for each in self.lines]
        return last_lines(pieces, lines)

    async def log_pieces(self, training_id: str) -> AsyncIterator[dict[str, Any]]:
        if training_id not in self._runs:
            raise Unknown(training_id)
        sent = 0
        while not self.versions.closed:
            version = self.versions.newest
            if fresh := self.lines[sent:]:
                sent += len(fresh)
                text = "\n".join(fresh) + "\n"
                yield {"attempt": 1, "source": "learner-0", "text": text}
            await self.versions.wait(version, 5)
        await asyncio.sleep(0)

    def act(self, training_id: str, verb: str, arguments: Mapping[str, Any]) -> str:
        if training_id not in self._runs:
            raise Unknown(training_id)
        if self._records[training_id]["state"] == "COMPLETED":
            raise Refused(f"there is nothing to {verb}: {training_id} is COMPLETED")
        self.acts.append((training_id, verb, dict(arguments)))
        if verb == "halt":
            self.change(training_id, state="HALTED", reason="a person halted it")
        return f"{training_id}: {verb} was asked for"

    @contextmanager
    def look(self, training_ids: Sequence[str]) -> Iterator[None]:
        self.looked.append(tuple(training_ids))
        try:
            yield
        finally:
            self.looked.remove(tuple(training_ids))

    def close(self) -> None:
        self.versions.close()

    def change(self, training_id: str, **known: Any) -> None:
        """Change what is known of a training, and say so."""
        with self._lock:
            self._records[training_id] |= known
        self.versions.bump([training_id])

    def grow(self, training_id: str, steps: int) -> None:
        """Let a training do some steps, and say so."""
        with self.run(training_id) as run:
            begin = run.last_step + 1
            attempt = run.attempts[-1].attempt
            late_s = _LATE_S if attempt > 1 else 0.0
            train(run, begin, begin + steps, seed=begin, attempt=attempt, late_s=late_s)
            self._records[training_id] |= {
                "step": run.last_step, "done": min(1.0, run.last_step / 2000),
            }  # fmt: skip
        self.versions.bump([training_id])

    def say(self, *lines: str) -> None:
        """Write lines into the log of every training."""
        self.lines += lines
        self.versions.bump(self._runs)


def train(
    run: Run, begin: int, end: int, *, seed: int = 0, attempt: int = 1, rate: float = 0.1,
    learners: int = 1, pace_s: float = 0.35, late_s: float = 0.0,
) -> None:  # fmt: skip
    """Add the metrics of some steps."""
    chance = random.Random(seed)  # noqa: S311
    for step in range(begin, end):
        time = T0 + late_s + step * pace_s
        epoch = step // 200
        lr = rate if step < 800 else rate / 10
        noise = 0.10 if step < 800 else 0.05
        base = 0.12 + 2.2 * math.exp(-step / (28 / rate)) * (1 if step < 800 else 0.8)
        values: dict[str, float | None] = {
            "loss": max(1e-3, base * (1 + chance.gauss(0, noise))), "learning_rate": lr,
            "samples_per_s": 1450 + chance.gauss(0, 35), "accuracy": min(
                0.995, 0.97 - 0.85 * math.exp(-step / (20 / rate)) + chance.gauss(0, 0.012)),
        }  # fmt: skip
        run.add(Origin(attempt, 0, Source.LOOP), MetricsLine(step, epoch, time, values))
        if step % 50 == 0 and step:
            checked: dict[str, float | None] = {
                "validation_loss": base * 1.13 + 0.02 + chance.gauss(0, 0.008),
                "validation_accuracy": 0.95 - 0.85 * math.exp(-step / (20 / rate)),
            }
            run.add(Origin(attempt, 0, Source.LOOP), MetricsLine(step, epoch, time, checked))
        if step % 250 == 0 and step:
            saved = MetricsLine(step, epoch, time, {"seconds": 0.8, "bytes": 1.8e7},
                                f"step {step} saved", kind=EventKind.CHECKPOINT.value)  # fmt: skip
            run.add(Origin(attempt, 0, Source.LOOP), saved)
        if step == 800:
            run.add(Origin(attempt, 0, Source.LOOP), MetricsLine(
                step, epoch, time, {}, "learning_rate 0.1 → 0.01",
                kind=EventKind.LEARNING_RATE.value))  # fmt: skip
        if step % 10 == 0:
            for learner in range(learners):
                run.add(Origin(attempt, learner, Source.NODE), MetricsLine(
                    time=time, values=_utilisation(chance, step)))  # fmt: skip


def _utilisation(chance: random.Random, step: int) -> dict[str, float | None]:
    validating = step % 50 == 0
    return {
        "gpu0_percent": (34 if validating else 86) + chance.gauss(0, 5),
        "gpu0_memory_bytes": 3.1e10 + chance.gauss(0, 2e8),
        "cpu_percent": 42 + 18 * math.sin(step / 90) + chance.gauss(0, 4),
        "memory_rss_bytes": 9.2e9 + step * 1.1e5,
        "network_receive_bytes_per_s": max(0.0, 3.4e8 + chance.gauss(0, 4e7)),
    }


def begin(run: Run, attempt: int, step: int, time: float) -> None:
    """Let an attempt train from a step on."""
    line = MetricsLine(step, None, time, {}, "begins", kind=EventKind.BEGIN.value)
    run.add(Origin(attempt, 0, Source.JOB), line)


def training(training_id: str, steps: int, **how: Any) -> Run:
    """Return a run of one attempt."""
    run = Run(training_id)
    begin(run, 1, 0, T0 + how.get("late_s", 0.0))
    train(run, 0, steps, **how)
    return run


def resumed(training_id: str, steps: int) -> Run:
    """Return a run of two attempts: the second does some steps again."""
    run = training(training_id, 640, seed=3, learners=2)
    lost = MetricsLine(
        640, 3, T0 + 224, {}, "FAILED: node n7 was lost", kind=EventKind.VERDICT.value
    )
    run.add(Origin(1, 0, Source.JOB), lost)
    begin(run, 2, 500, T0 + 320)
    train(run, 501, steps, seed=4, attempt=2, learners=2, late_s=_LATE_S)
    return run


def spiked(training_id: str, points: int, spikes: Sequence[int]) -> Run:
    """Return a run of many quiet points, and single ones far above."""
    run = Run(training_id)
    begin(run, 1, 0, T0)
    curve = run.curve(Key(Source.PROGRAM.value, 0, "train", "loss"))
    values = array("d", bytes(8 * points))
    for place in spikes:
        values[place] = 1.0
    steps = array("d", range(points))
    columns = curve.points
    for column in (columns.step_first, columns.step_last, columns.step_low, columns.step_high):
        column.extend(steps)
    columns.time.extend(T0 + step * 0.01 for step in steps)
    columns.count.extend(1.0 for _ in steps)
    for column in (columns.low, columns.high, columns.first, columns.last):
        column.extend(values)
    return run


def details(**more: Any) -> dict[str, Any]:
    """Return details as a live training has them."""
    known = {
        "checkpoints": [{"step": s, "epoch": s // 200, "size_bytes": 18_200_000, "complete": True,
                         "written_at": T0 + s * 0.35, "learners": 2, "kept_for_ever": s == 500}
                        for s in (1000, 750, 500)],
        "verdicts": [{"attempt": 1, "state": "FAILED", "reason": "node n7 was lost",
                      "kind": "node_lost", "hint": "it goes on by itself"}],
        "learners": [{"rank": r, "host": f"n{r + 4}", "state": "TRAINING", "step": 1190,
                      "epoch": 5, "heartbeat_at": T0 + 570, "exit_code": None, "signal": None,
                      "reason": "", "metrics": {}} for r in range(2)],
        "plan": {"resources": {"learners": 2, "nodes": 2, "gpus_per_learner": 1,
                               "cpus_per_learner": 8, "time_s": 14400},
                 "training": {"batch_size": 64, "epochs": 10, "learning_rate": 0.1, "seed": 7},
                 "framework": {"name": "pytorch", "job": "train.py", "command": None}},
        "attempts": [{"attempt": n, "resources": {"learners": 2}, "code_changes": []}
                     for n in (1, 2)],
    }  # fmt: skip
    return known | more


def make_feed(*, hostile: bool = True) -> SyntheticFeed:
    """Return trainings as a person has them: some ended, one queued, one live; one full of HTML."""
    feed = SyntheticFeed()
    other = {"batch_size": 128, "epochs": 10, "learning_rate": 0.04, "seed": 7}
    tuned = {"plan": details()["plan"] | {"training": other}}
    feed.add(training("digits-2b7d", 2000, seed=1, rate=0.04), name="digits",
             details=details(verdicts=[], **tuned))  # fmt: skip
    feed.add(training("digits-4c1a", 900, seed=2, rate=0.16), name="digits", state="FAILED",
             reason="learner 1 on n9 ran out of memory", done=0.45,
             details=details(verdicts=[]))  # fmt: skip
    feed.add(Run("char-lm-8h2s"), name="char-lm", state="PENDING", done=None, started_at=0.0,
             ended_at=0.0, reason="waits for resources (Priority)", step=None)  # fmt: skip
    if hostile:
        _add_hostile(feed)
    feed.add(resumed("digits-3k9f", 1190), name="digits", state="TRAINING", attempt=2,
             done=0.595, epochs=10, epoch=5, ended_at=0.0, details=details())  # fmt: skip
    feed.lines += [
        f"step {n}: loss {2.2 * math.exp(-n / 280) + 0.12:.4f}" for n in range(1150, 1190)
    ]
    return feed


def make_sweep() -> SyntheticFeed:
    """Return forty trainings: five learning rates, two weight decays, four seeds."""
    feed = SyntheticFeed()
    for number in range(40):
        rate, decay, seed = (
            (0.01, 0.03, 0.1, 0.3, 1.0)[number // 8],
            number // 4 % 2,
            number % 4 + 1,
        )
        run = Run(f"sweep-w{number + 1}")
        begin(run, 1, 0, T0)
        for step in range(0, 100, 10):
            base = math.exp(-step * rate / 50) + decay + seed / 100
            values: dict[str, float | None] = {
                "train/loss": base, "val/loss": base + 0.1 + 0.001 * step * (seed == 4),
                "val/accuracy": 1 - base / 3, "scale": rate,
            }  # fmt: skip
            run.add(Origin(1, 0, Source.PROGRAM), MetricsLine(step, None, T0 + step, values))
        plan = details()["plan"] | {
            "framework": {"name": "pytorch", "command": "python train.py",
                          "arguments": {"lr": rate, "wd": decay}}, "training": {"seed": seed},
        }  # fmt: skip
        feed.add(run, name="sweep", varied=f"lr={rate} wd={decay} seed={seed}",
                 details=details(verdicts=[], plan=plan))  # fmt: skip
    return feed


def _add_hostile(feed: SyntheticFeed) -> None:
    feed.add(training("hostile-9z9z", 60, seed=5), name=HTML, state="HALTED",
             reason=f"halted {HTML}", details=details(
                 verdicts=[], output=f"{EVIL}: 2 B; not in RESULT_DIR", checkpoints=[
                     {"step": None, "epoch": None, "size_bytes": 2, "complete": None, "name": EVIL,
                      "written_at": T0, "learners": None, "kept_for_ever": False}]))  # fmt: skip
    with feed.run("hostile-9z9z") as run:
        for step in range(60):
            run.add(
                Origin(1, 0, Source.PROGRAM),
                MetricsLine(step, 0, T0 + step, {HTML: math.sin(step)}),
            )
        run.add(Origin(1, 0, Source.PROGRAM), MetricsLine(30, 0, T0 + 30, {}, HTML))
        run.add(Origin(1, 0, Source.PROGRAM), MetricsLine(59, 0, T0 + 59, {EVIL: 1.0}))
    feed.lines.append(f"10 %\ra line with {EVIL}\r")
