"""Divide a training's state over all learners, checkpoint it, and restore it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from dlctl.contract import CheckpointPolicy
from learner.checkpoint import rng
from learner.checkpoint.engine import CheckpointEngine, Keep
from learner.checkpoint.interval import Interval
from learner.checkpoint.load import Loaded, check_settings, filled
from learner.checkpoint.state_tree import Pieces, pack
from learner.checkpoint.writer_process import WriterProcess
from learner.checkpoint_files.disk import Disk
from learner.checkpoint_files.layout import Marker, directory_name
from learner.exchange import Exchange
from learner.model.lr_schedule import Schedule
from learner.model.user_model import Parts
from learner.model.weights import buffers_of, restore_buffers, restore_model, state_of
from learner.training.optimizer_state import OptimizerState, check_optimizer, restore_optimizer


@dataclass
class Position:
    """The position of a training between two steps."""

    epoch: int = 0
    """How many epochs are finished."""
    batch: int = 0
    """How many global batches of the current epoch are done, not counting `done`."""
    step: int = 0
    """How many optimizer steps are done, over all epochs."""
    sums: dict[str, float] = field(default_factory=dict)
    """Sums of the loss and each metric over the samples of the current epoch."""
    samples: int = 0
    """How many samples `sums` covers."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """The values of every finished epoch."""
    done: list[tuple[int, int]] = field(default_factory=list)
    """What is done of the current epoch and later ones, in ranges of positions with gaps: by a
    parameter server's learners (see psrv.cursor.base), or in batches of another size."""
    orders: int = 0
    """The number of the newest order of a person that took effect."""
    tuned: dict[str, float] = field(default_factory=dict)
    """The loop's settings that orders have changed."""
    rolled_back: int = 0
    """The newest attempt whose jump of the loss was left out of the data."""


class StateMissing(Exception):
    """A part of the state can't be read now, so there is no checkpoint of this step."""


class ServerState(Protocol):
    """A parameter server's state beside the model, with the positions of its learners."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state.

        Raises:
            StateMissing: the state can't be read.
        """

    def needed(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the part of a stored state that this learner needs; the rest is not read."""

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Restore a state; None means a checkpoint of a training without a parameter server."""


@dataclass(frozen=True)
class Trained:
    """The objects whose state a checkpoint holds."""

    parts: Parts
    schedule: Schedule
    device: torch.device
    sharded: OptimizerState | None = None
    """Set if the optimizer's state is divided over the learners."""
    server: ServerState | None = None
    """Set if the training has a parameter server."""


class CheckpointKeeper:
    """Checkpoints of one training. Every learner must call `save` and `load`."""

    def __init__(
        self,
        root: Path,
        policy: CheckpointPolicy,
        settings: dict[str, int],
        exchange: Exchange,
        say: Callable[[str], None],
        writer: WriterProcess | None = None,
        disk: Disk | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        keep = Keep(policy.keep, policy.keep_every_steps)
        self._policy = policy
        self._settings = settings
        self._exchange = exchange
        self._say = say
        self._interval = Interval(policy, clock)
        self._engine = CheckpointEngine(root, exchange, say, keep, writer, disk)
        self._newest_step: int | None = None
        """The step of the newest checkpoint that this run began to save, or loaded."""
        self._failures = 0
        self._prepared = False
        self._stall_s = 0.0

    @property
    def saved_step(self) -> int | None:
        """Return the step of the newest checkpoint that this run completed or loaded."""
        return self._engine.saved_step

    @property
    def stall_s(self) -> float:
        """Return how long training has waited for checkpoints since the last read, in seconds."""
        stall_s, self._stall_s = self._stall_s, 0.0
        return stall_s

    @property
    def cost_s(self) -> float:
        """Return how long the newest checkpoint took until it was on the disk; 0 without any."""
        return self._engine.copy_s + self._engine.write_s if self._engine.write_s else 0.0

    def overdue(self) -> bool:
        """Return whether a checkpoint is due by the clock; rank 0's answer decides for all.

        Call this after each step: it also processes the writer's events.
        """
        self._engine.poll()
        if self._engine.failures > self._failures:
            self._failures = self._engine.failures
            self._interval.failed()
        return self._interval.overdue(busy=self._engine.busy)

    def due_after_step(self, step: int) -> bool:
        """Return whether a checkpoint is due after this step."""
        policy = self._policy
        intervals = (policy.every_steps, policy.keep_every_steps)
        return any(every is not None and step % every == 0 for every in intervals)

    def due_after_epoch(self, epoch: int) -> bool:
        """Return whether a checkpoint is due after this epoch; by default one is after each."""
        policy = self._policy
        if policy.every_epochs is None:
            other = policy.every_steps is not None or policy.every_s is not None
            return not other and not policy.auto
        return epoch % policy.every_epochs == 0

    def check(self, trained: Trained) -> None:
        """Check before the first step that a checkpoint can hold the whole state.

        Raises:
            UserFault: the state has an object that a checkpoint can't hold.
        """
        pack(trained.schedule.state_dict())
        pack(trained.parts.model.state_dict())
        pack(_optimizer_state(trained))

    def prepare(self, trained: Trained, position: Position) -> None:
        """Allocate memory for snapshots; call this after a step, when the optimizer has state."""
        if not self._prepared:
            self._engine.prepare(*self._state(trained, position))
            self._prepared = True

    def ready(self, step: int) -> bool:
        """Return whether `save` would save now; for callers that must gather the state first.

        If not, it is postponed as by `save`, or this step already has one.
        """
        return self._newest_step != step and self._may_begin()

    def save(self, trained: Trained, position: Position, *, final: bool = False) -> bool:
        """Save the state; return False if there is no checkpoint of this step.

        Training waits only for a copy in memory. While the last checkpoint is still being written,
        this one is postponed (`overdue` returns True once it can be taken), except the final one,
        which `save` waits for. A full disk, or a state that can't be read, costs only this
        checkpoint: a warning is printed, and the earlier ones stay.
        """
        began = time.perf_counter()
        try:
            if final:
                return self._save_now(trained, position)
            return self._newest_step == position.step or self._begin(trained, position)
        finally:
            self._stall_s += time.perf_counter() - began

    def _save_now(self, trained: Trained, position: Position) -> bool:
        complete = self._engine.wait()
        if complete and self._newest_step == position.step:
            return True
        if self._newest_step == position.step and self._engine.saved_step == position.step:
            return True  # this step's checkpoint was loaded
        return self._begin(trained, position) and self._engine.wait()

    def _begin(self, trained: Trained, position: Position) -> bool:
        if not self._may_begin():  # checked before packing the state, which takes time
            return False
        try:
            tree, own = self._state(trained, position)
        except StateMissing as error:
            self._say(f"WARNING: no checkpoint at step {position.step}: {error}")
            self._interval.missed()
            return False
        self._engine.save(position.step, tree, self._settings, own=own, epoch=position.epoch)
        self._newest_step = position.step
        self._interval.saved(self._engine.copy_s, self._engine.write_s)
        return True

    def _may_begin(self) -> bool:
        if self._engine.ready():
            return True
        self._interval.put_off()
        return False

    def _state(self, trained: Trained, position: Position) -> tuple[Any, Any]:
        """Return the state of the training, and this learner's own state."""
        model = trained.parts.model
        tree = {
            "model": self._of_first(state_of(model), buffers_of(model)),
            "optimizer": {
                "class": type(trained.parts.optimizer).__name__,
                "state": _optimizer_state(trained),
            },
            "schedule": trained.schedule.state_dict(),
            "position": asdict(position),
        }
        if trained.server is not None:
            tree["server"] = trained.server.state_dict()
        own = {"random": rng.capture(trained.device), "buffers": self._own_buffers(model)}
        return tree, own

    def _of_first(self, state: dict[str, Any], buffers: dict[str, Any]) -> dict[str, Any]:
        """Return a model's state with rank 0's buffers only: the learners' buffers may differ."""
        if self._exchange.size == 1:
            return state
        first = self._exchange.rank == 0
        return {
            name: _whole_or_nothing(value, whole=first) if name in buffers else value
            for name, value in state.items()
        }

    def _own_buffers(self, model: torch.nn.Module) -> dict[str, torch.Tensor]:
        """Return this learner's buffers that differ from rank 0's or are not in the state."""
        buffers = buffers_of(model)
        if not buffers:
            return {}
        digests = {name: _digest(buffer) for name, buffer in buffers.items()}
        first = self._exchange.share(digests)
        if self._exchange.rank == 0:
            stored = state_of(model).keys()
            return {name: b for name, b in buffers.items() if name not in stored}
        return {name: b for name, b in buffers.items() if digests[name] != first[name]}

    def load(self, trained: Trained) -> Position | None:
        """Restore the newest complete checkpoint; return its position, or None if there is none.

        Raises:
            UserFault: the checkpoint has another model, optimizer or data order.
        """
        found = self._engine.load(lambda loaded: self._read(loaded, trained))
        if found is None:
            return None
        marker, state, own = found
        name = directory_name(marker.step)
        restore_model(trained.parts.model, state["model"], name)
        for one in own:
            restore_buffers(trained.parts.model, one["buffers"])
        if trained.sharded is None:
            restore_optimizer(trained.parts.optimizer, state["optimizer"], name)
        trained.schedule.load_state_dict(state["schedule"])
        if trained.server is not None:
            trained.server.load_state_dict(state.get("server"))
        position = Position(**state["position"])
        self._newest_step = position.step
        if marker.learners == self._exchange.size:
            rng.restore(own[-1]["random"], trained.device)
        else:
            self._reseed(marker.settings.get("learners", marker.learners), position.step)
        return position

    def _read(self, loaded: Loaded, trained: Trained) -> tuple[Marker, Any, list[Any]]:
        check_settings(loaded.marker.settings, self._settings, loaded.directory)
        tree = loaded.tree()
        server = tree.pop("server", None)
        if server is not None and trained.server is not None:
            tree["server"] = trained.server.needed(server)
        elif server is not None:
            self._say(
                "the checkpoint is of a training with a parameter server: weights, position in the "
                "data and learner 0's optimizer are restored, the state of its solver is not"
            )
        if trained.sharded is not None:
            check_optimizer(trained.parts.optimizer, tree["optimizer"], loaded.directory.name)
            optimizer = tree.pop("optimizer")
            trained.sharded.load_stored(optimizer["state"])
        rank, size = self._exchange.rank, self._exchange.size
        ranks = [0, rank] if loaded.marker.learners == size else [0]
        return loaded.marker, filled(tree), [loaded.own(n) for n in dict.fromkeys(ranks)]

    def _reseed(self, before: int, step: int) -> None:
        now = self._settings.get("learners", self._exchange.size)
        self._say(
            f"learners in the checkpoint: {before}, now: {now}; their random number "
            "generators (for dropout, for example) are reseeded"
        )
        rng.seed_all(self._settings["seed"], self._exchange.rank, step)

    def finish(self) -> None:
        """Wait until the checkpoint that is being written is complete."""
        self._engine.wait()

    def close(self) -> None:
        """Let the writer process finish, then end it."""
        self._engine.close()


def _optimizer_state(trained: Trained) -> dict[str, Any]:
    source = trained.sharded or trained.parts.optimizer
    return dict(source.state_dict())


def _whole_or_nothing(value: Any, *, whole: bool) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    flat = [(0, value.detach().contiguous().reshape(-1))] if whole else []
    return Pieces(tuple(value.shape), value.dtype, flat)


def _digest(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(flat.numpy().data).digest()
