"""Strategies: which trials a search runs next. Pure: they know neither RPC nor files.

A strategy is a class with `ask(n)`, which returns up to n points of the space, and
`tell(trial, value)`. What it answers depends only on the order of the calls and on the seed, so a
search that is rebuilt from its log goes on as if nothing had happened.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any, cast

from dlctl.contract.search import Spec
from search.strategies.base import Point, Proposal, Strategy, Trial, TrialResult
from search.strategies.evolution import Aging, Genetic, PopulationBased
from search.strategies.optuna_samplers import SAMPLERS, Optuna
from search.strategies.plain import Asha, Grid, Hyperband, LatinHypercube, Random
from search.strategies.space import Space

__all__ = [
    "NAMES", "SAMPLERS", "Point", "Proposal", "Space", "Strategy", "Trial", "TrialResult",
    "make_strategy",
]  # fmt: skip


_OURS: dict[str, Any] = {
    "grid": Grid, "random": Random, "latin_hypercube": LatinHypercube, "genetic": Genetic,
    "aging": Aging, "asha": Asha,
    "hyperband": Hyperband, "pbt": PopulationBased,
}  # fmt: skip
NAMES = (*_OURS, *SAMPLERS)


def make_strategy(spec: Spec) -> Strategy:
    """Return the strategy of a search.

    Raises:
        ValueError: there is none of this name, or it does not know one of the options.
        ImportError: the user's class can't be imported, or Optuna is missing.
    """
    space = Space(spec.space)
    if spec.strategy in SAMPLERS:
        return Optuna(space, spec.seed, spec.strategy, **spec.options)
    if ":" in spec.strategy:
        module, _, name = spec.strategy.partition(":")
        kind = getattr(importlib.import_module(module), name)
    elif spec.strategy in _OURS:
        kind = _OURS[spec.strategy]
    else:
        raise ValueError(f"there is no strategy {spec.strategy!r}; there are {', '.join(NAMES)}")
    try:
        inspect.signature(kind).bind(space, spec.seed, **spec.options)
    except TypeError as error:
        raise ValueError(f"the strategy {spec.strategy}: {error}") from None
    return cast(Strategy, kind(space, spec.seed, **spec.options))
