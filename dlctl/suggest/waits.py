"""When a job may start, and where jobs have waited least: this user's own earlier waits. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from dlctl.contract.measured.past import Past, quantile
from dlctl.series.readable import exact_span
from dlctl.suggest.evidence import Suggestion
from dlctl.units import counted, format_span

if TYPE_CHECKING:
    from dlctl.manifest.model import Manifest

_LEAST = 3
"""Fewer waits say nothing about a partition."""
_LATE = 0.9
_WORTH_S = 300.0
"""A shorter wait is worth no change of the partition."""


@dataclass(frozen=True)
class Start:
    """When the job may start: what the scheduler plans, beside how long others have waited."""

    partition: str
    planned_in_s: float | None
    """What the scheduler says now, as if nobody else came and no job ended early; None: nothing."""
    why_not: str
    """Why the scheduler says nothing; empty if it does."""
    jobs: int
    """The number of known earlier jobs of this user there."""
    waited_s: float | None
    """Their median."""
    waited_late_s: float | None
    """Nine of ten waited less."""

    @property
    def sentence(self) -> str:
        """Return both in words: never one number alone."""
        planned = self.why_not
        if self.planned_in_s is not None:
            planned = f"planned in {format_span(self.planned_in_s)}"
        where = f" in {self.partition}" if self.partition else ""
        if self.waited_s is None or self.waited_late_s is None:
            return f"{planned}; no earlier job of yours{where} is known".lstrip("; ")
        waited = f"your {counted(self.jobs, 'job')}{where} waited {exact_span(self.waited_s)}"
        late = f" in the median, nine of ten at most {exact_span(self.waited_late_s)}"
        return f"{planned}; {waited}{late if self.jobs > 1 else ''}".lstrip("; ")


def waits(here: Sequence[Past], partition: str) -> list[float]:
    """Return how long each job in a partition has waited, once for each job."""
    longest: dict[str, float] = {}
    for past in here:
        if past.partition == partition and past.job_id and not past.is_rehearsal:
            longest[past.job_id] = max(longest.get(past.job_id, 0.0), past.queued_s)
    return list(longest.values())


def start(
    here: Sequence[Past], partition: str, planned_in_s: float | None, why_not: str
) -> Start:  # fmt: skip
    """Return what is known of the start of a job in a partition."""
    known = waits(here, partition)
    return Start(
        partition, planned_in_s, why_not, len(known), median(known) if known else None,
        quantile(known, _LATE) if known else None,
    )  # fmt: skip


def partition(
    manifest: Manifest, chosen: str, names: Sequence[str], here: Sequence[Past],
    fits: Callable[[str], bool],
) -> Suggestion:  # fmt: skip
    """Return the partition in which this user's jobs have waited least, if that is worth a change.

    Args:
        chosen: Where the manifest's job would go now; empty: it fits nowhere.
        names: The site's partitions.
        fits: Whether the job fits one.
    """
    value = manifest.scheduler.partition or ""
    known = {name: found for name in names if len(found := waits(here, name)) >= _LEAST}
    evidence = "; ".join(f"{name}: {counted(len(found), 'job')} waited {exact_span(median(found))}"
                         for name, found in known.items())  # fmt: skip
    if len(known) < 2 or chosen not in known:
        least = f"fewer than {_LEAST} earlier jobs in all partitions but one"
        return Suggestion("scheduler.partition", value, "",
                          f"too little to compare: {evidence or least}")  # fmt: skip
    best = min((name for name in known if name == chosen or fits(name)),
               key=lambda name: median(known[name]))  # fmt: skip
    now_s, best_s = median(known[chosen]), median(known[best])
    is_better = now_s - best_s > _WORTH_S and best_s < now_s / 2
    return Suggestion("scheduler.partition", value, best if is_better else value, evidence)
