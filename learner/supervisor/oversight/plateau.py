"""Follow the curve by which a training is judged, and tell once of each plateau.

Reads what learner 0 measured, over all attempts and bit by bit, and keeps a few hundred means of
each curve, however long the training is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from dlctl import contract
from dlctl.contract import Plateau as Rule
from dlctl.contract.ground.follow import LineFollower, Position
from dlctl.contract.measured.judged_series import RATE_NAMES, Key, is_better_lower, judged, key_of
from dlctl.contract.measured.rates import Rates
from dlctl.contract.metrics import NO_STEP, EventKind, MetricsLine, Source, parse_line, placed
from learner.job.metrics import MetricsFile
from learner.supervisor.oversight.standstill import (
    LEAST,
    METHOD,
    Plateau,
    find_plateau,
    median_of_newest,
)

LOOK_EVERY_S = 20.0
SOONEST_S = 2.0
"""A training that has just begun is looked at more often: it may be short."""
_READ_S = 0.1
"""For how long one look reads at most; the rest is read a second later."""
_LAST_READ_S = 2.0
_MOST_POINTS = 120
_MOST_CURVES = 100
_MOST_NAMES = 10_000
_MOST_VALUE = 1e100
"""Beyond it, sums and slopes would no longer be numbers."""
_SOURCES = (Source.LOOP, Source.PROGRAM, Source.LOG, Source.PROGRESS)


@dataclass
class Curve:
    """The newest part of a curve, as means of neighbours; higher values are better."""

    first: float | None = None
    best: float = -math.inf
    points: list[tuple[float, float]] = field(default_factory=list)
    """(step, gain) since the learning rate changed; of several steps the last step and the mean."""
    _each: int = 1
    """How many values a point is the mean of."""
    _waiting: list[float] = field(default_factory=list)

    def add(self, step: float, gain: float) -> None:
        """Take a value; those of this step and later ones are replaced."""
        if self.points and self.points[-1][0] >= step:
            self.drop_after(step - 1)
        self.first = gain if self.first is None else self.first
        self.best = max(self.best, gain)
        self._waiting.append(gain)
        if len(self._waiting) < self._each:
            return
        self.points.append((step, sum(self._waiting) / len(self._waiting)))
        self._waiting.clear()
        if len(self.points) > _MOST_POINTS:
            pairs = zip(self.points[::2], self.points[1::2])
            self.points = [(b[0], (a[1] + b[1]) / 2) for a, b in pairs]
            self._each *= 2

    def drop_after(self, step: float) -> None:
        """Forget what is done again."""
        self._waiting.clear()
        self.points = [point for point in self.points if point[0] <= step]

    def begin_after(self, step: float) -> None:
        """Forget the values up to a change of the learning rate, but not what was gained by it."""
        if self.points and self.points[0][0] <= step:
            self.points = [point for point in self.points if point[0] > step]
            self._each = 1
            self._waiting.clear()

    @property
    def whole(self) -> float:
        """Return what the training has gained."""
        return 0.0 if self.first is None else self.best - self.first


@dataclass(frozen=True)
class FoundPlateau:
    """A plateau that was told."""

    key: Key
    plateau: Plateau
    step: int
    """The newest step by then."""

    @property
    def reason(self) -> str:
        """Return it in words, as the beginning of a sentence."""
        return f"{self.key.shown} has hardly improved since step {self.plateau.since_step:.0f}"


class PlateauFinder:
    """Takes lines of metrics in their order and finds plateaus. Pure.

    Args:
        metric: the name of the metric to follow; empty: the one by which a training is judged.
        better: `lower` or `higher`, for that metric.
        by_epochs: take only the built-in loop's means of epochs, and what it validates every so
            many of them: steps may stand still within the first epoch. 0: take all.
    """

    def __init__(self, metric: str = "", better: str = "", by_epochs: int = 0) -> None:
        self._by_epochs = by_epochs
        self._last_line: MetricsLine | None = None
        self._wanted = key_of(Source.LOOP, 0, "", metric) if metric else None
        self._lower = better == "lower"
        self._signs: dict[Key, float] = {}
        self._curves: dict[Key, Curve] = {}
        self._rates: dict[Key, Rates] = {}
        self._known: dict[Key, tuple[float, float]] = {}
        """By curve since which step the plateau was that was told, and what must be exceeded."""
        self._newest = NO_STEP

    def add(self, source: Source, line: MetricsLine) -> None:
        """Take a line of learner 0."""
        line = placed(line, max(0, self._newest))
        if line.step == NO_STEP:
            return
        if line.event:
            if line.kind == EventKind.BEGIN.value:
                self._go_back(line.step)
            return
        if self._by_epochs:
            if source is not Source.LOOP:
                return
            before, self._last_line = self._last_line, line
            if before is None or before.epoch == line.epoch:
                return
            line = before  # the last one of an epoch has its means
        self._newest = max(self._newest, line.step)  # sources are read one after the other
        for name, value in line.values.items():
            if value is None or abs(value) > _MOST_VALUE:
                continue
            key = key_of(source, 0, line.series_group, name)
            if name in RATE_NAMES:
                if key in self._rates or len(self._rates) < _MOST_CURVES:
                    self._rates.setdefault(key, Rates()).add(line.step, value)
            elif (sign := self._sign(key)) and (
                key in self._curves or len(self._curves) < _MOST_CURVES
            ):
                self._curves.setdefault(key, Curve()).add(line.step, sign * value)

    def remember(self, line: MetricsLine) -> None:
        """Take the line of a plateau that was told, perhaps by an earlier attempt."""
        for key, curve in self._curves.items():
            level, margin = line.values.get("level"), line.values.get("margin")
            if level is None or margin is None or not curve.points:
                continue
            if key.shown == line.texts.get("metric") and curve.points[-1][0] >= line.step:
                self._known[key] = (line.step, self._sign(key) * level + margin)

    def look(self) -> FoundPlateau | None:
        """Return the plateau that the judged curve is on, unless it was told before."""
        key = min(self._curves, default=None) if self._wanted else judged(self._curves)
        epoch = (self._last_line.epoch or 0) if self._last_line else 0
        if key is None or 0 < self._by_epochs >= epoch:  # there may be validation data
            return None
        curve, change = self._curves[key], self._last_change()
        curve.begin_after(change)
        since, exceed = self._known.get(key, (NO_STEP, 0.0))
        gains = [gain for _, gain in curve.points]
        if len(gains) < LEAST or (since > change and median_of_newest(gains) <= exceed):
            return None
        found = find_plateau(curve.points, curve.whole)
        if found is None:
            return None
        self._known[key] = (found.since_step, found.level + found.margin)
        return FoundPlateau(key, found, self._newest)

    def line(self, found: FoundPlateau) -> MetricsLine:
        """Return the event of a plateau."""
        plateau, sign = found.plateau, self._sign(found.key)
        values: dict[str, float | None] = {
            "level": sign * plateau.level, "margin": plateau.margin, "last_step": float(found.step),
        }  # fmt: skip
        return MetricsLine(
            int(plateau.since_step), None, round(time.time(), 3), values,
            f"plateau: {found.reason}", kind=EventKind.PLATEAU.value,
            texts={"metric": found.key.shown, "method": METHOD},
        )  # fmt: skip

    def _sign(self, key: Key) -> float:
        """Return what turns values into gains; 0 for a series that nobody follows."""
        if (known := self._signs.get(key)) is not None:
            return known
        wanted, lower = self._wanted, is_better_lower(key.name)
        if wanted is not None:
            is_it = key.name == wanted.name and wanted.group in ("", key.group)
            lower = self._lower if is_it else None
        if len(self._signs) >= _MOST_NAMES:
            self._signs.clear()
        self._signs[key] = sign = {True: -1.0, False: 1.0, None: 0.0}[lower]
        return sign

    def _last_change(self) -> float:
        for name in RATE_NAMES:
            for key in sorted(self._rates):
                if key.name == name:
                    return max((c.step for c in self._rates[key].changes()), default=NO_STEP)
        return NO_STEP

    def _go_back(self, step: int) -> None:
        self._last_line = None
        self._newest = min(self._newest, step)
        for curve in self._curves.values():
            curve.drop_after(step)
        for rates in self._rates.values():
            rates.drop_after(step)
        self._known = {key: known for key, known in self._known.items() if known[0] <= step}


class PlateauWatch:
    """Reads the files of metrics now and then, and writes the event of each plateau.

    Args:
        rule: the manifest's `stop.plateau`, if the test decides and not its patience.
        by_epochs: see `PlateauFinder`.
        clock: seconds that never go back.
        report: takes each line of this attempt that was read from a log.
    """

    def __init__(
        self,
        job_dir: Path,
        attempt: int,
        rule: Rule | None = None,
        clock: Callable[[], float] = time.monotonic,
        by_epochs: int = 0,
        report: Callable[[MetricsLine], None] = lambda _: None,
    ) -> None:
        self._clock, self._report = clock, report
        self._watch = (
            PlateauFinder(rule.metric, rule.better, by_epochs) if rule else PlateauFinder()
        )
        self._remembers = rule is None  # an attempt may be ended before its plateau ends it
        self._began_at = clock()
        self._look_at = self._began_at + SOONEST_S
        self._files = [
            (n, source, LineFollower(job_dir / contract.metrics_file(n, 0, source), Position()))
            for n in range(1, attempt + 1)
            for source in (*_SOURCES, *([Source.JOB] if n < attempt else []))
        ]
        self._attempt = attempt
        self._is_fresh = False
        self._output = MetricsFile(
            job_dir / contract.metrics_file(attempt, 0, Source.JOB), warn=lambda _: None
        )

    def look(self) -> FoundPlateau | None:
        """Return a plateau that was not told before, once it is in the metrics."""
        now = self._clock()
        if now < self._look_at or not self._files:
            return None
        try:
            return self._look(now)
        except Exception:  # noqa: BLE001 - a mistake of ours must not end an attempt
            self._files.clear()
            return None

    def finish(self, *, judges: bool) -> None:
        """Read what is left.

        Args:
            judges: Whether a plateau that is found is put into the metrics.
        """
        with suppress(Exception):  # a mistake of ours must not fail an attempt
            is_read = self._read(self._clock() + _LAST_READ_S)
            if judges and is_read and (found := self._watch.look()):
                self._output.add(self._watch.line(found))

    def _look(self, now: float) -> FoundPlateau | None:
        caught_up = self._read(now + _READ_S)
        pause_s = min(LOOK_EVERY_S, max(SOONEST_S, (now - self._began_at) / 10))
        self._look_at = self._clock() + (pause_s if caught_up else 1.0)
        if not caught_up or not self._is_fresh:
            return None
        self._is_fresh = False
        if (found := self._watch.look()) is not None:
            self._output.add(self._watch.line(found))
        return found

    def _read(self, until: float) -> bool:
        """Read on; return whether nothing is left for now."""
        for entry in list(self._files):
            attempt, source, file = entry
            while (text := file.lines()) is not None:
                # Code that has been changed since may train at another rate.
                self._is_fresh = self._is_fresh or attempt == self._attempt
                self._take(source, text, is_newest=attempt == self._attempt)
                if self._clock() >= until:
                    return False
            if attempt < self._attempt:
                self._files.remove(entry)  # nobody goes on writing it
        return True

    def _take(self, source: Source, text: str, *, is_newest: bool) -> None:
        for written in text.split("\n"):
            line = parse_line(written) if written else None
            if line is None:
                continue
            if is_newest and source is Source.LOG:
                self._report(line)
            if source is not Source.JOB:
                self._watch.add(source, line)
            elif self._remembers and line.kind == EventKind.PLATEAU.value:
                self._watch.remember(line)
