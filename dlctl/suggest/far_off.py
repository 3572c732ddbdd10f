"""One line for a submission that asks for far more than any of its kind has ever used. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dlctl.contract import State
from dlctl.contract.measured.past import Past
from dlctl.series.readable import exact_span, memory_size
from dlctl.suggest.evidence import trainings

if TYPE_CHECKING:
    from dlctl.contract import Plan

_FAR = 3.0
_LEAST_BYTES, _LEAST_S = 2**30, 900
"""Less than this is worth no word, however little was used."""


def far_off(plans: Sequence[Plan], known: Sequence[Past]) -> str:
    """Return a sentence about the first plan that asks for more than 3 × what was ever used.

    Empty if there is none. Only trainings of the same name or code that have completed count.
    """
    done = {past.training_id for past in known
            if past.state == State.COMPLETED and not past.is_rehearsal}  # fmt: skip
    for plan in plans:
        same = [past for past in known if past.training_id in done
                and (plan.name == past.name or plan.code_digest == past.code_digest)]  # fmt: skip
        if told := [word for word in (_memory(plan, same), _time(plan, same)) if word]:
            return (f"asks for {' and '.join(told)} by {trainings(same)} of this name or code: "
                    "`dlctl suggest` has more, `--no-advice` silences this")  # fmt: skip
    return ""


def _memory(plan: Plan, same: Sequence[Past]) -> str:
    asked = plan.resources.memory_bytes_per_learner or 0
    used = max((past.memory_bytes or 0 for past in same), default=0)
    if not used or asked < _LEAST_BYTES or asked <= _FAR * used:
        return ""
    return f"{memory_size(asked)} of memory where at most {memory_size(used)} was used"


def _time(plan: Plan, same: Sequence[Past]) -> str:
    """Compare the time with that of trainings; with more epochs it may take as much longer."""
    asked_s = (plan.lifecycle.total_time_s if plan.lifecycle else None) or 0
    epochs = plan.training.epochs if plan.framework.has_loop else 0
    spans: dict[str, float] = {}
    for past in same:
        more = max(1.0, epochs / past.epochs) if past.epochs else 1.0
        spans[past.training_id] = spans.get(past.training_id, 0.0) + past.held_s * more
    used_s = max(spans.values(), default=0.0)
    if not used_s or asked_s < _LEAST_S or asked_s <= _FAR * used_s:
        return ""
    return f"{exact_span(asked_s)} where at most {exact_span(used_s)} was used"
