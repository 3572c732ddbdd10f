"""Which records of a training count, when attempts have done some steps again."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from dlctl.contract.metrics import NO_STEP, EventKind, MetricsLine, Source

_BEGIN, _VERDICT = EventKind.BEGIN.value, EventKind.VERDICT.value


@dataclass(frozen=True)
class Origin:
    """The origin of a line."""

    attempt: int
    learner: int
    """The rank."""
    source: Source


@dataclass
class Replays:
    """Takes the lines of all files in any order, each file's own in their order.

    A later attempt replaces the steps of earlier ones: from where it says that it begins, or else,
    for each learner, source and group, from its first line.
    """

    _newest: int = 0
    """The newest attempt of which something is known."""
    _begins: dict[int, int] = field(default_factory=dict)
    """The step from which each attempt trains on."""
    _firsts: dict[tuple[int, Source, str], dict[int, int]] = field(default_factory=dict)
    """The step before each attempt's first line, by learner, source and group.

    A program may count the steps of one group in batches, and those of another in epochs.
    """

    def cut(self, origin: Origin, line: MetricsLine) -> float | None:
        """Return after which step a line replaces its group's records; None: it does not count.

        `inf` replaces none. What is measured of nodes is never replaced: it happened.
        """
        if origin.source is Source.NODE or line.step == NO_STEP:
            return inf
        self._newest = max(self._newest, origin.attempt)
        if line.kind == _BEGIN:
            self._begins[origin.attempt] = line.step
            return line.step
        if line.kind == _VERDICT:
            return inf
        group = line.series_group
        firsts = self._firsts.setdefault((origin.learner, origin.source, group), {})
        is_first = origin.attempt not in firsts
        if is_first:
            firsts[origin.attempt] = line.step - 1
        if not self.counts(origin, group, line.step):
            return None
        return line.step - 1 if is_first else inf

    def counts(self, origin: Origin, group: str, step: float) -> bool:
        """Return whether no later attempt has done a step of a group again."""
        if origin.source is Source.NODE or origin.attempt == self._newest:
            return True
        firsts = self._firsts.get((origin.learner, origin.source, group), {})
        return all(
            step <= begin for known in (self._begins, firsts) for attempt, begin in known.items()
            if attempt > origin.attempt
        )  # fmt: skip

    def replaces_all(self, line: MetricsLine) -> bool:
        """Return whether a line replaces the records of all sources."""
        return line.kind == _BEGIN
