"""The time between checkpoints that loses the least time, by Young's and Daly's formula. Pure."""

from __future__ import annotations

import math

_LONGEST_S = 24 * 3600.0
"""The interval on a site whose nodes never fail: the program may still fail."""
_LEAST_S = 10.0


def best_interval_s(cost_s: float, mtbf_s: float) -> float:
    """Return the time between checkpoints that loses the least time: sqrt(2 δ M).

    Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974;
    Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future
    Generation Computer Systems 22, 2006 (Daly uses it for δ < 2 M, and M otherwise).

    Args:
        cost_s: how long training stops for a checkpoint (δ).
        mtbf_s: the job's mean time between failures (M).
    """
    return math.sqrt(2 * cost_s * mtbf_s) if cost_s < 2 * mtbf_s else mtbf_s


def sensible_interval_s(cost_s: float, mtbf_s: float | None, write_s: float = 0.0) -> float:
    """Return the best interval within sensible bounds.

    Args:
        cost_s: how long training stops for a checkpoint.
        mtbf_s: the job's mean time between failures; None: it never fails.
        write_s: how long a checkpoint takes until it is on the disk: the next one waits for that.
    """
    best_s = _LONGEST_S if mtbf_s is None else best_interval_s(cost_s, mtbf_s)
    return max(best_s, write_s, _LEAST_S)
