"""A suggestion, and the words for what it rests on. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dlctl.contract.measured.past import Past
from dlctl.units import counted

_ENOUGH = 1.5
"""Up to so many times what is suggested, what was asked for stays."""


@dataclass(frozen=True)
class Suggestion:
    """What one key of the manifest should be."""

    key: str
    """With dots, as `checkpoint.every`."""
    asked: str
    """As the manifest says it; empty: it says nothing."""
    suggested: str
    """As a manifest takes it; the same as `asked`: that is fine; empty: nobody can tell."""
    evidence: str

    @property
    def is_change(self) -> bool:
        """Return whether the manifest should be changed."""
        return bool(self.suggested) and self.suggested != self.asked


def trainings(known: Iterable[Past]) -> str:
    """Return how many trainings these attempts are of, or how many rehearsals."""
    known = list(known)
    what = "rehearsal" if known and all(past.is_rehearsal for past in known) else "training"
    return counted(len({past.training_id for past in known}), what)


def whole(known: Iterable[Past]) -> list[Past]:
    """Return the pasts of trainings; those of rehearsals, which are short, only without any."""
    known = list(known)
    return [past for past in known if not past.is_rehearsal] or known


def of_learners(
    known: Iterable[Past], learners: int, value: Callable[[Past], object]
) -> tuple[list[Past], str]:
    """Return the pasts that tell a value, and of how many learners; others if none had as many."""
    telling = whole(past for past in known if past.is_telling and value(past) is not None)
    alike = [past for past in telling if past.learners == learners]
    if alike or not telling:
        return alike, f" with {counted(learners, 'learner')}"
    counts = sorted({past.learners for past in telling})
    words = ", ".join(map(str, counts))
    return telling, f" with {words} {'learner' if counts == [1] else 'learners'}, not {learners}"


def range_of(values: Sequence[float], form: Callable[[float], str]) -> str:
    """Return the smallest and the largest value, as `3.1 to 3.4 GiB`."""
    low, high = form(min(values)), form(max(values))
    if low == high:
        return low
    number, _, unit = low.partition(" ")
    return f"{number} to {high}" if unit and high.endswith(f" {unit}") else f"{low} to {high}"


def is_enough(asked: float | None, needed: float) -> bool:
    """Return whether what was asked for is enough, and not far more than that."""
    return asked is not None and needed <= asked <= _ENOUGH * needed
