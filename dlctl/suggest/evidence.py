"""A suggestion, what it rests on, and the one line that a submission gets. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlctl.contract import State
from dlctl.contract.measured.past import Past
from dlctl.series.readable import exact_span, memory_size
from dlctl.units import counted

if TYPE_CHECKING:
    from dlctl.contract import Plan

_FAR = 3.0
_LEAST_BYTES, _LEAST_S = 2**30, 900
"""Less than this is worth no word, however little was used."""
_ENOUGH = 1.5
"""Up to so many times what is suggested, what was asked for stays."""


@dataclass(frozen=True)
class Suggestion:
    """The suggestion for one key of the manifest."""

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


def is_enough(wanted: float | None, needed: float) -> bool:
    """Return whether what was asked for is enough, and not far more than that."""
    return wanted is not None and needed <= wanted <= _ENOUGH * needed


def far_off(plans: Sequence[Plan], known: Sequence[Past]) -> str:
    """Return a sentence about the first plan that asks for more than 3 × what was ever used.

    Empty if there is none. Only trainings of the same name or code that have completed count.
    """
    done = {past.training_id for past in known
            if past.state == State.COMPLETED and not past.is_rehearsal}  # fmt: skip
    for plan in plans:
        same = [past for past in known if past.training_id in done
                and (plan.name == past.name or plan.code_digest == past.code_digest)]  # fmt: skip
        if excesses := [word for word in (_memory(plan, same), _time(plan, same)) if word]:
            return (f"asks for {' and '.join(excesses)} by {trainings(same)} of this name or code: "
                    "`dlctl suggest` has more, `--no-advice` silences this")  # fmt: skip
    return ""


def _memory(plan: Plan, same: Sequence[Past]) -> str:
    wanted = plan.resources.memory_bytes_per_learner or 0
    used = max((past.memory_bytes or 0 for past in same), default=0)
    if not used or wanted < _LEAST_BYTES or wanted <= _FAR * used:
        return ""
    return f"{memory_size(wanted)} of memory where at most {memory_size(used)} was used"


def _time(plan: Plan, same: Sequence[Past]) -> str:
    """Compare the time with that of trainings; with more epochs it may take as much longer."""
    wanted_s = (plan.lifecycle.total_time_s if plan.lifecycle else None) or 0
    epochs = plan.training.epochs if plan.framework.has_loop else 0
    spans: dict[str, float] = {}
    for past in same:
        more = max(1.0, epochs / past.epochs) if past.epochs else 1.0
        spans[past.training_id] = spans.get(past.training_id, 0.0) + past.held_s * more
    used_s = max(spans.values(), default=0.0)
    if not used_s or wanted_s < _LEAST_S or wanted_s <= _FAR * used_s:
        return ""
    return f"{exact_span(wanted_s)} where at most {exact_span(used_s)} was used"
