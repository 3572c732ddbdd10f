"""The best value of a metric."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from dlctl.contract.measured.judged import is_better_lower

S = TypeVar("S")


def best_of(name: str, points: Iterable[tuple[S, float]]) -> tuple[S, float] | None:
    """Return the best of (step, value), the first of equals; None if nobody knows what is good."""
    lower = is_better_lower(name)
    if lower is None:
        return None
    known = [(step, value) for step, value in points if value == value]
    if not known:
        return None
    pick = min if lower else max
    return pick(known, key=lambda point: point[1])
