"""Which way a metric gets better, by its name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar

S = TypeVar("S")

_LOWER = re.compile(
    r"\bloss\b|\berr(or)?\b|perplexity|\bppl\b|\bmae\b|\br?mse\b|\bwer\b|\bcer\b|\bnll\b|\bbpc\b|\bfid\b"
)
_HIGHER = re.compile(
    r"\bacc(uracy)?\b|precision|recall|\bf1\b|\bauc|\bmap\b|\biou\b|dice|bleu|rouge|psnr|ssim|reward|score|top.?\d"
)


def is_better_lower(name: str) -> bool | None:
    """Return whether lower values are better; None if the name does not tell."""
    words = name.lower().replace("_", " ").replace("/", " ").replace("-", " ")
    if _LOWER.search(words):
        return True
    return False if _HIGHER.search(words) else None


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
