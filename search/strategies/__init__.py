"""Strategies: which trials a search runs next. Pure: they know neither RPC nor files.

A strategy is a class with `ask(n)`, which returns up to n points of the space, and
`tell(trial, value)`. What it answers depends only on the order of the calls and on the seed, so a
search that is rebuilt from its log goes on as if nothing had happened.
"""

from __future__ import annotations

from search.strategies.base import Point, Proposal, Strategy, Told, Trial
from search.strategies.choose import NAMES, make_strategy
from search.strategies.optuna_samplers import SAMPLERS
from search.strategies.space import Space

__all__ = [
    "NAMES", "SAMPLERS", "Point", "Proposal", "Space", "Strategy", "Told", "Trial", "make_strategy",
]  # fmt: skip
