"""One list of metrics of a training: attempts and sources merged, replayed steps replaced."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from dlctl.contract.measured.bins import Bin
from dlctl.contract.metrics import NO_STEP, EventKind, MetricsLine, Source, placed
from dlctl.series.curve import Curve, Key, key_of
from dlctl.series.replays import Origin, Replays


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
    """The place of an attempt in the training."""

    attempt: int
    first_step: int
    """The step from which it trains on."""
    began_at: float | None = None
    """Unix seconds, when training began."""
    ended_at: float | None = None
    state: str = ""
    """How it ended; empty while it runs, or if unknown."""


@dataclass(frozen=True)
class Halved:
    """A bin that was dropped, because a later attempt has done some of its steps again."""

    source: str
    learner: int
    first: float
    last: float
    """The first and the last step of the points that are missing."""


@dataclass
class Run:
    """The metrics of one training."""

    training_id: str
    curves: dict[Key, Curve] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    attempts: list[AttemptSpan] = field(default_factory=list)
    out_of_order: bool = False
    """Whether a line that counts came after one of a later attempt: then read all lines again."""
    halved: list[Halved] = field(default_factory=list)
    """The steps missing where attempts meet, until `refine` brings them."""
    _newest: int = 0
    _has_steps: bool = False
    _has_epochs: bool = False
    """Whether a program has told a step, or an epoch alone."""
    _replays: Replays = field(default_factory=Replays)
    _groups: dict[Key, str] = field(default_factory=dict)
    """The group of each curve as its lines have it, which may lack what the name says."""
    _by_name: dict[tuple[Source, int, str, str], Curve] = field(default_factory=dict)
    """The curve of each name, as lines have it."""
    _epochs: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    """Steps, and the epoch of each."""

    def add(self, origin: Origin, line: MetricsLine) -> None:
        """Take in a line, after all lines of earlier attempts."""
        has_step = line.step != NO_STEP
        if origin.source is not Source.NODE and not line.event:
            self._has_steps = self._has_steps or has_step
            if not has_step and line.epoch is not None:
                line = self._placed(origin, line)
        cut = self._replays.cut(origin, line)
        if cut is None:
            return
        self._newest = max(self._newest, origin.attempt)
        replaceable = line.step != NO_STEP and line.kind != _VERDICT
        if origin.attempt < self._newest and origin.source is not Source.NODE and replaceable:
            self.out_of_order = True
            return
        if cut < inf:
            everything = self._replays.replaces_all(line)
            self._drop_after(cut, origin, None if everything else line.series_group)
        if line.event:
            self._take_event(origin, line)
            return
        time = math.nan if line.time is None else line.time
        for name, value in line.values.items():
            curve = self._curve_of(origin, line.series_group, name)
            if origin.source is not Source.NODE and line.step != NO_STEP:
                # A program may go back by itself; it may measure several times in an epoch.
                curve.drop_after(line.step - has_step)
            curve.points.point(line.step, time, math.nan if value is None else float(value))
        if line.epoch is not None and line.step != NO_STEP:
            self._note_epoch(line.step, line.epoch)

    def _placed(self, origin: Origin, line: MetricsLine) -> MetricsLine:
        """Return a line that tells only an epoch with its step."""
        self._has_epochs = True
        if not self._has_steps:
            return placed(line, 0)
        mine = (
            curve.points.step_last[-1] for key, curve in self.curves.items()
            if len(curve) and (key.source, key.learner) == (origin.source.value, origin.learner)
        )  # fmt: skip
        return placed(line, int(max(mine, default=0)))

    def add_bins(self, origin: Origin, group: str, name: str, bins: Sequence[Bin]) -> None:
        """Take in the bins of a series, after the events of its file and before its last lines."""
        if not bins:
            return
        self._newest = max(self._newest, origin.attempt)
        curve = self._curve_of(origin, group, name)
        first = MetricsLine(int(bins[0].step_first), group=group)
        cut = self._replays.cut(origin, first)
        if cut is not None and cut < inf:
            self._drop_after(cut, origin, group)
        for bin_ in bins:
            if self._replays.counts(origin, group, bin_.step_last):
                if origin.source is not Source.NODE and bin_.step_first != NO_STEP:
                    curve.drop_after(bin_.step_first - 1)  # a program that went back by itself
                curve.points.append(bin_)

    def refine(self, origin: Origin, group: str, name: str, bins: Sequence[Bin]) -> None:
        """Replace the bins of a window by finer ones, or fill in what is missing there."""
        kept = [b for b in bins if self._replays.counts(origin, group, b.step_last)]
        if kept:
            self._curve_of(origin, group, name).replace(kept)

    def _curve_of(self, origin: Origin, group: str, name: str) -> Curve:
        parts = origin.source, origin.learner, group, name
        if (found := self._by_name.get(parts)) is None:
            key = key_of(*parts)
            self._groups.setdefault(key, group)
            found = self._by_name[parts] = self.curve(key)
        return found

    def _drop_after(self, step: float, origin: Origin, group: str | None) -> None:
        """Forget what is done again: of a group of one learner and source, or of all but nodes."""
        series = (origin.source.value, origin.learner, group)
        for key, curve in self.curves.items():
            known = (key.source, key.learner, self._groups.get(key, key.group))
            mine = group is None or known == series
            lost = curve.drop_after(step) if mine and key.source != Source.NODE.value else None
            if lost is not None:
                self.halved.append(Halved(key.source, key.learner, lost.step_first, step))
        if group is None:
            self.events = [e for e in self.events if e.step <= step or e.kind in _LASTING]

    def _take_event(self, origin: Origin, line: MetricsLine) -> None:
        n = origin.attempt
        self.events.append(Event(n, line.step, line.time, line.kind, line.event, line.values))
        if line.kind == EventKind.BEGIN.value:
            self.attempts = [a for a in self.attempts if a.attempt != n]
            self.attempts.append(AttemptSpan(n, line.step, line.time))
            self.attempts.sort(key=lambda a: a.attempt)
        elif line.kind == EventKind.VERDICT.value:
            for span in self.attempts:
                if span.attempt == n:
                    span.ended_at, span.state = line.time, line.event.partition(":")[0]

    def curve(self, key: Key) -> Curve:
        """Return a curve, empty if it is new."""
        if (found := self.curves.get(key)) is None:
            found = self.curves[key] = Curve(key)
        return found

    def named(self, name: str, group: str | None = None) -> list[Curve]:
        """Return the curves with a name, of one group if given, the trainer's own ones first."""
        found = [
            (key, curve) for key, curve in self.curves.items()
            if key.name == name and (group is None or key.group == group) and len(curve)
        ]  # fmt: skip
        return [curve for _, curve in sorted(found, key=lambda pair: pair[0])]

    @property
    def step_word(self) -> str:
        """Return the unit of steps: `epoch` if the program tells nothing but epochs."""
        return "epoch" if self._has_epochs and not self._has_steps else "step"

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


_VERDICT = EventKind.VERDICT.value
_LASTING = (EventKind.BEGIN.value, _VERDICT)
"""Events that happened, whatever was done again."""
