"""The interface between a strategy and the model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Point = dict[str, Any]
"""A value for each parameter of the space that exists there."""


@dataclass(frozen=True)
class Trial:
    """A point that is, or was, tried."""

    number: int
    """From 0, in the order in which the trials were asked for."""
    point: Point
    parent: int | None = None
    """The trial from whose checkpoint this one goes on."""


@dataclass(frozen=True)
class Proposal:
    """A point whose trial goes on from the checkpoint of an earlier one."""

    point: Point
    parent: int


@dataclass(frozen=True)
class TrialResult:
    """The result of a trial."""

    value: float | None
    """The metric, the smaller the better; None: the trial failed, or returned no number."""
    metrics: dict[str, float] = field(default_factory=dict)
    stopped: bool = False
    """Whether the strategy itself ended the trial early."""


class Strategy(Protocol):
    """Decides which points are tried. Of itself it takes no notice of results."""

    def ask(self, n: int) -> Sequence[Point | Proposal]:
        """Return at most n points to try next.

        An empty list: none before more results are told, or, if none is outstanding, none at all.
        """

    def tell(self, trial: Trial, result: TrialResult) -> None:  # noqa: B027
        """Take in the result of a trial."""

    def report(self, trial: Trial, step: int, value: float) -> bool:  # noqa: ARG002
        """Return whether a running trial goes on after it has reported a value at a step."""
        return True


def counted_random(seed: int, number: int) -> random.Random:
    """Return the random numbers of one trial: the same whatever was drawn for others."""
    return random.Random(f"{seed}:{number}")  # noqa: S311 - no secret
