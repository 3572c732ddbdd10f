"""The state of a distributed optimizer, as checkpoints take and give it."""

from __future__ import annotations

from typing import Any

from learner.checkpoint.keeper import restore_optimizer
from learner.checkpoint.load import filled
from learner.distributed_optimizer import DistributedOptimizer


class OptimizerState:
    """What learner.checkpoint.keeper.ShardedState asks for."""

    def __init__(self, optimizer: DistributedOptimizer) -> None:
        self._optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        """Return the state, with `Pieces` for what this learner holds a part of."""
        return self._optimizer.pieces_of_state()

    def load_stored(self, state: dict[str, Any]) -> None:
        """Take a state back; the next step divides it."""
        wrapped = self._optimizer.wrapped
        stored = {"class": type(wrapped).__name__, "state": filled(state)}
        restore_optimizer(wrapped, stored, "")
