"""The state of a distributed optimizer, as checkpoints save and restore it."""

from __future__ import annotations

from typing import Any

import torch

from learner.checkpoint.load import filled
from learner.checkpoint.share_reader import Stored, read_all
from learner.data_parallel.optimizer import DistributedOptimizer
from learner.data_parallel.shared_weights import Piece
from learner.errors import UserFault
from learner.training.checkpoints import restore_optimizer


class OptimizerState:
    """Implements learner.training.checkpoints.ShardedState for a distributed optimizer."""

    def __init__(self, optimizer: DistributedOptimizer) -> None:
        self._optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        """Return the state, with `Pieces` for tensors that this learner holds in part."""
        return self._optimizer.pieces_of_state()

    def load_stored(self, state: dict[str, Any]) -> None:
        """Restore a state; this learner reads only its part of tensors that are divided."""
        wrapped = self._optimizer.wrapped
        divided = self._optimizer.shard_as(state.get("order", []))
        if divided is None:
            stored = {"class": type(wrapped).__name__, "state": filled(state)}
            restore_optimizer(wrapped, stored, "")
            return
        wanted = Wanted()
        try:
            divided.load_parts(state, wanted.part)
        except (ValueError, KeyError) as error:
            raise UserFault(f"the checkpoint does not fit the optimizer: {error}") from error
        read_all(wanted.ranges)


class Wanted:
    """The ranges of a checkpoint's tensors that this learner has to read."""

    def __init__(self) -> None:
        self.ranges: list[tuple[Stored, torch.Tensor, int]] = []
        """Each a tensor, the memory for its bytes, and the offset of the first byte."""

    def part(self, value: Any, piece: Piece | None) -> Any:
        """Return memory for the part of a value that belongs to a piece, and note its range."""
        if not isinstance(value, Stored):
            return value
        if piece is None or piece.whole or value.shape != piece.shape:
            start, shape = 0, value.shape
        else:
            start, shape = piece.start, (piece.stop - piece.start,)
        tensor = torch.empty(shape, dtype=value.dtype)
        flat = tensor.reshape(-1).view(torch.uint8)
        self.ranges.append((value, flat, start * value.item_bytes))
        return tensor
