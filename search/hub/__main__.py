"""The hub's process, and what it tells of its search: `python -m search.hub JOB_DIR`.

It tells files that `dlctl search` reads, and a training's progress.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import threading
import types
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dlctl import contract
from dlctl.contract import search as names
from dlctl.contract.measured.judged_series import TRIALS
from dlctl.contract.metrics import Source
from search.errors import SearchError
from search.hub.recruit import Recruiter, Work
from search.model.state import ASK, TELL
from search.protocol.children import Child
from search.protocol.process import load_spec

TICK_S = 0.1
TELL_S = 1.0
_PATIENCE_S = 10.0


def main() -> int:
    """Keep the search's processes alive until the model is done, or until a signal."""
    parser = argparse.ArgumentParser(prog="search.hub")
    parser.add_argument("job_dir", type=Path)
    job_dir = parser.parse_args().job_dir
    try:
        spec = load_spec(job_dir)
    except SearchError as error:
        sys.stderr.write(f"dlctl: {error}\n")
        return names.EXIT_WRONG
    halted = threading.Event()

    def note(number: int, frame: types.FrameType | None) -> None:
        del number, frame
        halted.set()

    for number in (signal.SIGUSR2, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, note)
    return Hub(job_dir, spec).run(halted)


class Hub:
    """The processes of one hub."""

    def __init__(self, job_dir: Path, spec: names.Spec) -> None:
        self._job_dir, self._spec = job_dir, spec
        folder, logs = str(job_dir), job_dir / names.LOGS
        final = frozenset({0, names.EXIT_WRONG})
        self._model = Child("model", ["search.model", folder], logs, final)
        self._children = [
            Child("nameserver", ["search.nameserver", folder], logs),
            Child("broker", ["search.broker", folder, "--name", names.FIRST_BROKER], logs),
            self._model,
        ]
        self._progress = Progress(job_dir, spec)
        self._recruiter = Recruiter(job_dir, spec, self._progress.work)
        self._ticks_left = 0

    def run(self, halted: threading.Event) -> int:
        """Return the exit code: 0 after a halt, or once the search is done."""
        logs = self._job_dir / names.LOGS
        code: int | None = None
        (self._job_dir / names.ENDED).unlink(missing_ok=True)
        for folder in (names.OUTBOXES, names.TASKS):  # workers in other languages rely on them
            (self._job_dir / folder).mkdir(parents=True, exist_ok=True)
        self._recruiter.start()
        while code is None and not halted.is_set():
            for child in self._children:
                final = child.look()
                code = final if child is self._model and final is not None else code
            self._tell()
            halted.wait(TICK_S)
        self._recruiter.ended.set()
        if code is not None:
            contract.write_whole(self._job_dir / names.ENDED, "")  # workers leave
        for child in reversed(self._children):
            child.end(_PATIENCE_S)
        self._tell(now=True)
        if code == 0:
            self._save()
        elif code is not None:
            sys.stderr.write((logs / "model.log").read_text(errors="replace")[-2000:])
        return code or 0

    def _tell(self, *, now: bool = False) -> None:
        self._ticks_left -= 1
        if not now and self._ticks_left > 0:
            return
        self._ticks_left = round(TELL_S / TICK_S)
        rows = self._progress.look()
        for row in rows:
            numbers = {k: v for k, v in row.items() if k not in ("time", "group")}
            text = " ".join(f"{name}={value:g}" for name, value in numbers.items())
            sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
        with contextlib.suppress(OSError):  # a full disk ends no search: what it tells is late
            self._write(rows)

    def _write(self, rows: list[dict[str, Any]]) -> None:
        attempt = int(os.environ.get("DLCTL_ATTEMPT", "1"))
        path = self._job_dir / contract.metrics_file(attempt, 0, Source.PROGRAM)
        if rows:
            path.parent.mkdir(exist_ok=True)
            with path.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
        self._progress.tell(
            {child.name: child.starts for child in self._children}, self._recruiter.report
        )

    def _save(self) -> None:
        """Write the results that `dlctl fetch results` brings."""
        results = os.environ.get("RESULT_DIR")
        if results is None:
            return
        contract.write_whole(Path(results, "best.json"), json.dumps(self._progress.best, indent=2))
        shutil.copy(self._job_dir / names.TRIALS, results)


_LATELY = 50
"""How many of the newest trials say how long one takes."""


class Progress:
    """Follows the model's log as it grows."""

    def __init__(self, job_dir: Path, spec: names.Spec) -> None:
        self._job_dir, self._path, self._spec = job_dir, job_dir / names.TRIALS, spec
        self._covered_trials = _last_step(job_dir / contract.METRICS)
        """How many ended trials the metrics cover: those that an earlier hub has told."""
        self._begin()

    def _begin(self) -> None:
        """Begin before the first line."""
        self._at = 0
        self._last = b""
        """The last line that was read, which ends where the next one begins."""
        self._newest = names.Newest()
        self.proposed = self.done = self.failed = 0
        self.best: dict[str, Any] | None = None
        self._points: dict[int, dict[str, Any]] = {}
        self._trial_s: deque[float] = deque(maxlen=_LATELY)

    def look(self) -> list[dict[str, Any]]:
        """Return a row for each trial that has ended since the last look of any hub."""
        rows = []
        for event in self._new():
            if event["event"] == ASK:
                self.proposed += len(event["trials"])
                self._points |= {each["number"]: each["point"] for each in event["trials"]}
            elif event["event"] == TELL:
                self.done += 1
                self._trial_s.append(event["seconds"])
                metric = event["metric"]
                if metric is None:
                    self.failed += event["outcome"] != "CANCELLED"
                    continue
                sign = -1 if self._spec.maximize else 1
                if self.best is None or sign * metric < sign * self.best["value"]:
                    self.best = {"trial": event["number"], "value": metric,
                                 "point": self._points[event["number"]]}  # fmt: skip
                if self.done > self._covered_trials:
                    row = {self._spec.metric: metric,
                           f"best {self._spec.metric}": self.best["value"]}  # fmt: skip
                    rows.append({"step": self.done, "time": event["time"], "group": TRIALS, **row})
        return rows

    def _new(self) -> Iterator[dict[str, Any]]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._at - len(self._last))
                if file.read(len(self._last)) != self._last:  # a failed sync took it back
                    self._begin()
                    file.seek(0)
                lines = file.read().splitlines(keepends=True)
        except FileNotFoundError:
            return
        for line in lines:
            if line.endswith(b"\n"):
                self._at, self._last = self._at + len(line), line
                with contextlib.suppress(ValueError):  # a damaged one: the model says so, and ends
                    event = json.loads(line)
                    if self._newest.counts(event):
                        yield event

    def work(self) -> Work:
        """Return what there is to do."""
        lately = list(self._trial_s)
        budget = self._spec.budget.trials
        return Work(
            self.proposed - self.done, None if budget is None else budget - self.done,
            sum(lately) / len(lately) if lately else None, self.done,
        )  # fmt: skip

    def tell(self, children: dict[str, int], workers: dict[str, Any]) -> None:
        """Write the progress that the watchdog and the supervisor read, and the hub's own file."""
        metrics = {} if self.best is None else {f"best {self._spec.metric}": self.best["value"]}
        report: dict[str, Any] = {"step": self.done, "metrics": metrics, "listed": True}
        if trials := self._spec.budget.trials:
            report["done"] = min(1.0, self.done / trials)
        if path := os.environ.get("DLCTL_PROGRESS_FILE"):
            contract.write_whole(Path(path), json.dumps(report))
        state = {"asked": self.proposed, "done": self.done, "failed": self.failed,
                 "best": self.best, "starts": children,
                 "workers": workers}  # fmt: skip
        contract.write_whole(self._job_dir / names.STATUS, json.dumps(state))
        self._mark()

    def _mark(self) -> None:
        """Leave a mark in CHECKPOINT_DIR, by whose number the supervisor sees progress."""
        folder = self._job_dir / contract.CHECKPOINTS
        folder.mkdir(exist_ok=True)
        marks = sorted(folder.glob("trials-*"))
        now = folder / f"trials-{self.proposed + self.done}"
        if not marks:
            contract.write_whole(now, "")
        elif marks[-1] != now:
            marks[-1].rename(now)


def _last_step(folder: Path) -> int:
    """Return the greatest step in the files of a hub's metrics; 0 without any."""
    steps = [0]
    for path in folder.glob(f"*-{Source.PROGRAM.value}.jsonl"):
        with path.open("rb") as file:
            for line in file:
                with contextlib.suppress(ValueError, KeyError, TypeError):  # a torn line
                    steps.append(int(json.loads(line)["step"]))
    return max(steps)


if __name__ == "__main__":
    sys.exit(main())
