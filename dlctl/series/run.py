"""One list of metrics of a training: attempts and sources merged, replayed steps replaced."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field

from dlctl.contract.metrics import NO_STEP, EventKind, MetricsLine, Source
from dlctl.series.curve import Curve, Key, key_of


@dataclass(frozen=True)
class Event:
    """Something that happened."""

    attempt: int
    step: int
    """`NO_STEP` if unknown."""
    time: float | None
    """Unix seconds."""
    kind: str
    """An `EventKind`, or empty."""
    text: str
    values: dict[str, float | None] = field(default_factory=dict)


@dataclass
class AttemptSpan:
    """Where an attempt is in the training."""

    attempt: int
    first_step: int
    """The step from which it trains on."""
    began_at: float | None = None
    """Unix seconds, when training began."""
    ended_at: float | None = None
    state: str = ""
    """How it ended; empty while it runs, or if unknown."""


@dataclass
class Run:
    """The metrics of one training."""

    training_id: str
    curves: dict[Key, Curve] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    attempts: list[AttemptSpan] = field(default_factory=list)
    _epochs: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    """Steps, and the epoch of each."""

    def begin_attempt(self, attempt: int, first_step: int, time: float | None) -> None:
        """Note that an attempt trains from a step on; forget what it does again."""
        self.attempts = [a for a in self.attempts if a.attempt != attempt]
        self.attempts.append(AttemptSpan(attempt, first_step, time))
        self.attempts.sort(key=lambda a: a.attempt)
        for key, curve in self.curves.items():
            if key.source != Source.NODE.value:
                curve.drop_after(first_step)
        self.events = [
            e for e in self.events
            if e.step <= first_step or e.attempt == attempt or e.kind in _LASTING
        ]  # fmt: skip

    def add(self, attempt: int, learner: int, source: Source, line: MetricsLine) -> None:
        """Take in a line of an attempt; lines of one file come in their order."""
        if line.event:
            self.events.append(
                Event(attempt, line.step, line.time, line.kind, line.event, line.values)
            )
            return
        time = math.nan if line.time is None else line.time
        for name, value in line.values.items():
            curve = self.curve(key_of(source, learner, line.group, name))
            if source is not Source.NODE and line.step != NO_STEP:
                curve.drop_after(line.step - 1)  # a program that went back, such as after a restart
            curve.points.point(line.step, time, math.nan if value is None else float(value))
        if line.epoch is not None and line.step != NO_STEP:
            self._note_epoch(line.step, line.epoch)

    def curve(self, key: Key) -> Curve:
        """Return a curve, empty if it is new."""
        if (found := self.curves.get(key)) is None:
            found = self.curves[key] = Curve(key)
        return found

    def named(self, name: str, group: str | None = None) -> list[Curve]:
        """Return the curves with a name, of one group if given, the trainer's own ones first."""
        return [
            curve for key, curve in sorted(self.curves.items())
            if key.name == name and (group is None or key.group == group) and len(curve)
        ]  # fmt: skip

    @property
    def last_step(self) -> int:
        """Return the newest step of any curve; `NO_STEP` without any."""
        newest = (c.points.step_last[-1] for c in self.curves.values() if len(c))
        return int(max(newest, default=NO_STEP))

    def epoch_at(self, step: float) -> float:
        """Return the epoch of a step, between two known ones by proportion; NaN if unknown."""
        steps, epochs = self._epochs
        if not steps:
            return math.nan
        after = bisect_right(steps, step)
        if after == 0:
            return epochs[0]
        if after == len(steps):
            return epochs[-1]
        share = (step - steps[after - 1]) / (steps[after] - steps[after - 1])
        return epochs[after - 1] + share * (epochs[after] - epochs[after - 1])

    def _note_epoch(self, step: int, epoch: int) -> None:
        steps, epochs = self._epochs
        while steps and steps[-1] >= step:
            steps.pop()
            epochs.pop()
        if len(epochs) >= 2 and epochs[-1] == epochs[-2] == epoch:
            steps[-1] = step
        else:
            steps.append(step)
            epochs.append(epoch)


_LASTING = (EventKind.BEGIN.value, EventKind.VERDICT.value)
"""Events that happened, whatever was done again."""
