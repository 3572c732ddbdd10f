"""The state of a distributed optimizer, as checkpoints save and restore it."""

from __future__ import annotations

from typing import Any

import torch

from learner.checkpoint.load import filled
from learner.checkpoint.share_reader import Stored, read_all
from learner.data_parallel.optimizer import DistributedOptimizer
from learner.data_parallel.shared_weights import Piece
from learner.errors import UserFault


class OptimizerState:
    """The state of an optimizer that is divided over the learners."""

    def __init__(self, optimizer: DistributedOptimizer) -> None:
        self._optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        """Return the state, with `Pieces` for tensors that this learner holds in part."""
        return self._optimizer.pieces_of_state()

    def load_stored(self, state: dict[str, Any]) -> None:
        """Restore a state that has a `Stored` in place of each tensor.

        This learner reads only its part of tensors that are divided. May be called again, with an
        earlier checkpoint, after a DamagedCheckpoint.
        """
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


def check_optimizer(optimizer: torch.optim.Optimizer, stored: dict[str, Any], name: str) -> None:
    """Check that a stored state belongs to an optimizer of this class.

    Raises:
        UserFault: the state is of another class.
    """
    if stored["class"] != type(optimizer).__name__:
        raise UserFault(
            f"the checkpoint {name} is of the optimizer {stored['class']}, "
            f"but build returned {type(optimizer).__name__}",
            hint="a resume needs the same optimizer; submit a changed one as a new training",
        )


def restore_optimizer(optimizer: torch.optim.Optimizer, stored: dict[str, Any], name: str) -> None:
    """Load a checkpoint's state into an optimizer, keeping every bit.

    Raises:
        UserFault: the state is of another optimizer, or does not fit.
    """
    check_optimizer(optimizer, stored, name)
    state = stored["state"]
    try:
        optimizer.load_state_dict(state)
    except (ValueError, KeyError) as error:
        raise UserFault(f"the checkpoint {name} does not fit the optimizer: {error}") from error
    # load_state_dict rounds the state to its parameter's dtype (for example a float32 moment of a
    # bfloat16 parameter): restore the saved values.
    numbers = [n for group in state["param_groups"] for n in group["params"]]
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        kept = optimizer.state.get(parameter, {})
        for key, value in state["state"].get(number, {}).items():
            now = kept.get(key)
            if isinstance(value, torch.Tensor) and isinstance(now, torch.Tensor):
                kept[key] = value.to(now.device)
