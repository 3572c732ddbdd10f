"""What the hub tells of its search: files that `dlctl search` reads, and a training's progress."""

from __future__ import annotations

import contextlib
import json
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dlctl import contract
from dlctl.contract import search as names
from dlctl.contract.measured.judged import TRIALS
from dlctl.contract.metrics import Source
from search.hub.recruit import Work
from search.model.state import ASK, TELL

_LATELY = 50
"""How many of the newest trials say how long one takes."""


class Progress:
    """Follows the model's log as it grows."""

    def __init__(self, job_dir: Path, spec: names.Spec) -> None:
        self._job_dir, self._path, self._spec = job_dir, job_dir / names.TRIALS, spec
        self._told = _last_step(job_dir / contract.METRICS)
        """How many ended trials the metrics cover: those that an earlier hub has told."""
        self._begin()

    def _begin(self) -> None:
        """Begin before the first line."""
        self._at = 0
        self._last = b""
        """The last line that was read, which ends where the next one begins."""
        self._newest = names.Newest()
        self.asked = self.done = self.failed = 0
        self.best: dict[str, Any] | None = None
        self._points: dict[int, dict[str, Any]] = {}
        self._trial_s: deque[float] = deque(maxlen=_LATELY)

    def look(self) -> list[dict[str, Any]]:
        """Return a row for each trial that has ended since the last look of any hub."""
        rows = []
        for event in self._new():
            if event["event"] == ASK:
                self.asked += len(event["trials"])
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
                if self.done > self._told:
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
            self.asked - self.done, None if budget is None else budget - self.done,
            sum(lately) / len(lately) if lately else None, self.done,
        )  # fmt: skip

    def tell(self, children: dict[str, int], workers: dict[str, Any]) -> None:
        """Write the progress that the watchdog and the supervisor read, and the hub's own file."""
        metrics = {} if self.best is None else {f"best {self._spec.metric}": self.best["value"]}
        told: dict[str, Any] = {"step": self.done, "metrics": metrics, "listed": True}
        if trials := self._spec.budget.trials:
            told["done"] = min(1.0, self.done / trials)
        if path := os.environ.get("DLCTL_PROGRESS_FILE"):
            contract.write_whole(Path(path), json.dumps(told))
        state = {"asked": self.asked, "done": self.done, "failed": self.failed,
                 "best": self.best, "starts": children,
                 "workers": workers}  # fmt: skip
        contract.write_whole(self._job_dir / names.STATUS, json.dumps(state))
        self._mark()

    def _mark(self) -> None:
        """Leave a mark in CHECKPOINT_DIR, by whose number the supervisor sees progress."""
        folder = self._job_dir / contract.CHECKPOINTS
        folder.mkdir(exist_ok=True)
        marks = sorted(folder.glob("trials-*"))
        now = folder / f"trials-{self.asked + self.done}"
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
