"""Take the state of a training apart over all learners, keep it, and put it back."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dlctl.contract import CheckpointPolicy
from learner.checkpoint import random_states
from learner.checkpoint.layout import Disk
from learner.checkpoint.load import Loaded, check_settings, load_newest
from learner.checkpoint.save import prune, remove_leftovers, save
from learner.checkpoint.tree import Packed, pack, unpack
from learner.exchange import Exchange
from learner.faults import UserFault
from learner.model_file import Parts
from learner.schedule import Schedule
from learner.weights import restore_model


@dataclass
class Position:
    """Where a training stands, between two steps."""

    epoch: int = 0
    """Epochs finished."""
    batch: int = 0
    """Global batches of the running epoch that are done."""
    step: int = 0
    """Optimizer steps done, over all epochs."""
    sums: dict[str, float] = field(default_factory=dict)
    """Of the running epoch: the sum over its samples of the loss and each metric."""
    samples: int = 0
    """Samples in `sums`."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """The values of every finished epoch."""


@dataclass(frozen=True)
class Trained:
    """The objects whose state a checkpoint holds."""

    parts: Parts
    schedule: Schedule
    device: torch.device


class CheckpointKeeper:
    """Checkpoints of one training. `save` and `load` are called by every learner; rank 0 writes."""

    def __init__(
        self,
        root: Path,
        policy: CheckpointPolicy,
        settings: dict[str, int],
        exchange: Exchange,
        say: Callable[[str], None],
        disk: Disk | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root = root
        self._policy = policy
        self._settings = settings
        self._exchange = exchange
        self._say = say
        self._disk = disk or Disk()
        self._clock = clock
        self._saved_at = clock()
        self.saved_step: int | None = None
        """The step of the newest checkpoint that this run wrote or began from."""

    def overdue(self) -> bool:
        """Return whether `every_s` has passed; the learners go by rank 0's answer."""
        every_s = self._policy.every_s
        return every_s is not None and self._clock() - self._saved_at >= every_s

    def due_after_step(self, step: int) -> bool:
        """Return whether a checkpoint is due after this step."""
        every = self._policy.every_steps
        return every is not None and step % every == 0

    def due_after_epoch(self, epoch: int) -> bool:
        """Return whether a checkpoint is due after this epoch: by default after each."""
        policy = self._policy
        if policy.every_epochs is None:
            return policy.every_steps is None and policy.every_s is None
        return epoch % policy.every_epochs == 0

    def check(self, trained: Trained) -> None:
        """Refuse, before the first step, what a checkpoint could not hold."""
        pack(trained.schedule.state_dict())
        pack(trained.parts.model.state_dict())
        pack(trained.parts.optimizer.state_dict())

    def save(self, trained: Trained, position: Position) -> bool:
        """Write a checkpoint; return whether there is one of this step now.

        A full disk costs this checkpoint only: a warning, and the earlier ones stay.
        """
        if self.saved_step == position.step:
            return True
        ranks = self._exchange.collect(pack(self._of_this_rank(trained)))
        problem = self._write(trained, position, ranks) if self._exchange.rank == 0 else None
        problem = self._exchange.share(problem)
        self._saved_at = self._clock()
        if problem is not None:
            self._say(f"WARNING: no checkpoint at step {position.step}: {problem}")
            return False
        self.saved_step = position.step
        return True

    def _of_this_rank(self, trained: Trained) -> dict[str, Any]:
        """Return the random states, and those buffers that rank 0's model does not stand for."""
        model = trained.parts.model
        buffers = dict(model.named_buffers())
        digests = {name: _digest(buffer) for name, buffer in buffers.items()}
        first = self._exchange.share(digests)
        if self._exchange.rank == 0:
            stored = model.state_dict().keys()
            mine = {name: b for name, b in buffers.items() if name not in stored}
        else:
            mine = {name: b for name, b in buffers.items() if digests[name] != first[name]}
        return {"random": random_states.capture(trained.device), "buffers": mine}

    def _write(self, trained: Trained, position: Position, ranks: list[Packed]) -> str | None:
        optimizer = trained.parts.optimizer
        packed = pack(
            {
                "model": dict(trained.parts.model.state_dict()),
                "optimizer": {"class": type(optimizer).__name__, "state": optimizer.state_dict()},
                "schedule": trained.schedule.state_dict(),
                "position": asdict(position),
                "ranks": [unpack(state) for state in ranks],
            }
        )
        try:
            save(self._root, position.step, packed, self._settings, self._disk)
        except OSError as error:
            return str(error) or type(error).__name__
        try:
            prune(self._root, position.step, self._policy.keep, self._disk)
        except OSError as error:  # the checkpoint itself is safe
            self._say(f"WARNING: old checkpoints can't be removed: {error}")
        return None

    def load(self, trained: Trained) -> Position | None:
        """Go back to the newest whole checkpoint; return the position, or None if there is none.

        Raises:
            UserFault: it is of another model, optimizer, data order or number of learners.
        """
        name, packed = self._read_and_share()
        if packed is None:
            return None
        state = unpack(packed)
        restore_model(trained.parts.model, state["model"], name)
        _restore_buffers(trained.parts.model, state["ranks"][0]["buffers"])
        _restore_buffers(trained.parts.model, state["ranks"][self._exchange.rank]["buffers"])
        _restore_optimizer(trained.parts.optimizer, state["optimizer"], name)
        trained.schedule.load_state_dict(state["schedule"])
        random_states.restore(state["ranks"][self._exchange.rank]["random"], trained.device)
        position = Position(**state["position"])
        self.saved_step = position.step
        return position

    def _read_and_share(self) -> tuple[str, Packed | None]:
        """Read on rank 0 and pass it on: no learner sees a file system that is behind."""
        loaded: Loaded | None = None
        if self._exchange.rank == 0:
            remove_leftovers(self._root, self._disk)
            loaded = load_newest(self._root, lambda text: self._say(f"WARNING: {text}"))
            if loaded is not None:
                check_settings(loaded.marker.settings, self._settings, loaded.directory)
        header = loaded and (
            loaded.directory.name,
            loaded.packed.text,
            [(array.dtype.str, array.size) for array in loaded.packed.arrays],
        )
        header = self._exchange.share(header)
        if header is None:
            return "", None
        name, text, kinds = header
        arrays = loaded.packed.arrays if loaded else [np.empty(n, kind) for kind, n in kinds]
        self._exchange.broadcast(torch.from_numpy(a.view(np.uint8)) for a in arrays)
        return name, Packed(text, arrays)


def _digest(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(flat.numpy().data).digest()


def _restore_buffers(model: torch.nn.Module, stored: dict[str, torch.Tensor]) -> None:
    buffers = dict(model.named_buffers())
    with torch.no_grad():
        for name, value in stored.items():
            buffers[name].copy_(value)


def _restore_optimizer(optimizer: torch.optim.Optimizer, stored: dict[str, Any], name: str) -> None:
    if stored["class"] != type(optimizer).__name__:
        raise UserFault(
            f"the checkpoint {name} is of the optimizer {stored['class']}, "
            f"and build returned {type(optimizer).__name__}",
            hint="resume needs the same optimizer; submit a changed one as a new training",
        )
    state = stored["state"]
    try:
        optimizer.load_state_dict(state)
    except (ValueError, KeyError) as error:
        raise UserFault(f"the checkpoint {name} does not fit the optimizer: {error}") from error
    # load_state_dict rounds the state to the dtype of its parameter (a float32 moment of a bfloat16
    # parameter, say): put back what was saved.
    numbers = [n for group in state["param_groups"] for n in group["params"]]
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        kept = optimizer.state.get(parameter, {})
        for key, value in state["state"].get(number, {}).items():
            now = kept.get(key)
            if isinstance(value, torch.Tensor) and isinstance(now, torch.Tensor):
                kept[key] = value.to(now.device)
