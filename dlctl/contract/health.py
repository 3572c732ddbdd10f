"""What the plan says about hangs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HangPolicy:
    """When learners that make no step are taken for hung.

    The limit is the largest of `floor_s`, `factor` times the median step, and twice the longest
    pause from which the learners have come back.
    """

    floor_s: float = 600.0
    factor: float = 10.0
