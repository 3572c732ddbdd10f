"""The names of dlctl's strategies, and the options of each."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Option:
    """A number that a strategy takes."""

    least: float
    most: float = math.inf
    """The greatest value; it is allowed, too."""
    is_whole: bool = True
    is_open: bool = False
    """Whether the number must be greater than `least`."""

    def fault(self, value: object) -> str:
        """Return which values are allowed, if this one is not; else an empty text."""
        kinds = (int,) if self.is_whole else (int, float)
        if isinstance(value, kinds) and not isinstance(value, bool):
            is_above = value > self.least if self.is_open else value >= self.least
            if is_above and value <= self.most:
                return ""
        noun = "a whole number" if self.is_whole else "a number"
        bounds = f"{'above' if self.is_open else 'from'} {self.least:g}"
        return f"{noun} {bounds}{'' if math.isinf(self.most) else f' to {self.most:g}'} is allowed"


_COUNT = Option(1)
_SHARE = Option(0, 1, is_whole=False)
_ETA = Option(2)

OPTIONS: dict[str, dict[str, Option]] = {
    "grid": {"levels": _COUNT},
    "random": {},
    "latin_hypercube": {"samples": _COUNT},
    "genetic": {
        "population": _COUNT, "tournament": _COUNT, "mutation": _SHARE, "crossover": _SHARE,
    },
    "aging": {"population": _COUNT, "sample": _COUNT, "mutation": _SHARE},
    "asha": {"first": _COUNT, "eta": _ETA, "most": _COUNT},
    "hyperband": {"eta": _ETA, "most": _COUNT},
    "pbt": {
        "population": Option(2), "share": Option(0, 0.5, is_whole=False, is_open=True),
        "factor": Option(1, is_whole=False, is_open=True), "resample": _SHARE,
    },
}  # fmt: skip
"""The options of each strategy of dlctl's own."""
SAMPLERS = ("tpe", "cmaes", "gp", "qmc", "nsga2")
"""Optuna's, whose options only Optuna knows."""
STRATEGIES = (*OPTIONS, *SAMPLERS)
"""A strategy of the user's is `module:Class`."""
