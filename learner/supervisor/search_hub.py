"""The hub of a search: a training by its job, and not by what is said of it."""

from __future__ import annotations

from collections.abc import Iterable

from dlctl.contract import Plan
from dlctl.contract.search import FRAMEWORK

_REASON, _HINT = "dlctl: ", "  HINT: "


def is_hub(plan: Plan) -> bool:
    """Return whether the job is a search's hub."""
    return plan.framework.name == FRAMEWORK


def resume_command(plan: Plan) -> str:
    """Return the command that goes on with a training, or with a search."""
    return f"dlctl {'search ' if is_hub(plan) else ''}resume {plan.training_id}"


def last_words(lines: Iterable[str]) -> tuple[str, str]:
    """Return why a search can't go on, and what to do, as its model said last; empty: nothing."""
    said = {_REASON: "", _HINT: ""}
    for line in lines:
        for mark in said:
            if line.startswith(mark):
                said[mark] = line.removeprefix(mark).rstrip(".")
    return said[_REASON], said[_HINT]
