"""Change a training while it runs: orders of people, and the manifest's guards.

All learners decide alike, at the end of the same step: learner 0's orders and the sums of all
losses travel with the exchange that each step has anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dlctl.contract import Order, Stopped, StopRules, Training
from learner.data.sampling import places_left
from learner.errors import UserFault
from learner.exchange import Exchange
from learner.job.directives import Orders
from learner.job.guards import Guards, jumps_before, known_plateau, write_stopped
from learner.training.checkpoints import Position, Trained


@dataclass(frozen=True)
class Steering:
    """Where a training is steered from; by default nobody steers."""

    orders: Orders | None = None
    """Set on learner 0 only."""
    rules: StopRules | None = None
    keep: Callable[[Stopped], None] = field(default=lambda _: None)
    """Keeps why a guard ended the training; for rank 0."""
    plateau: Callable[[], Stopped | None] = field(default=lambda: None)
    """Returns the plateau that the supervisor wants the training to end at, if any; for rank 0."""
    jumps: dict[int, int] = field(default_factory=dict)
    """The step of each jump of the loss by which an earlier attempt ended; learner 0 reads them."""


def steering(job_dir: Path, attempt: int, rank: int, rules: StopRules | None) -> Steering:
    """Return the steering of a learner."""
    keep = partial(write_stopped, job_dir, attempt)
    if rank != 0:
        return Steering(None, rules, keep)
    plateau = partial(known_plateau, job_dir, attempt)
    return Steering(Orders(job_dir, attempt), rules, keep, plateau, jumps_before(job_dir, attempt))


class StepControl:
    """Obeys orders and heeds the guards, on every learner alike."""

    def __init__(self, source: Steering, settings: Training, exchange: Exchange) -> None:
        self._source = source
        self._settings = settings
        self._exchange = exchange
        self._rules = source.rules or StopRules()
        self._guards = Guards(source.rules, "epochs")

    # Orders -------------------------------------------------------------------------------------

    def newest(self, position: Position) -> int:
        """Return the number of the newest order that is due after the coming step; learner 0's."""
        orders = self._source.orders
        return orders.due(position.orders, position.step + 1) if orders else position.orders

    def obey(
        self, newest: int, trained: Trained, position: Position, tell: Callable[[str], None]
    ) -> tuple[bool, bool]:
        """Obey the orders up to `newest`; return whether to save, and whether batches changed.

        Args:
            tell: records what was done.
        """
        mine = self._source.orders
        between = mine.between(position.orders, newest) if mine else None
        save, size = False, self.batch_size(position)
        for number, order in self._exchange.share(between).items():
            problem = _tune(order, trained, position)
            position.orders = number
            save = save or order.save
            tell(_event(number, order, problem))
            if mine is not None:
                mine.answer(number, position.step, problem)
        changed = self.batch_size(position) != size
        if changed:
            _keep_places(position, len(trained.parts.train), size)
        return save, changed

    def batch_size(self, position: Position) -> int:
        """Return how many samples a batch has now."""
        return int(position.tuned.get("batch_size", self._settings.batch_size))

    def clip_gradient_norm(self, position: Position) -> float | None:
        """Return the largest norm of all gradients now."""
        return position.tuned.get("clip_gradient_norm", self._settings.clip_gradient_norm)

    def leave_out(self, position: Position, samples: int, tell: Callable[[str], None]) -> None:
        """Leave out the batches between the checkpoint and the jumps that led back to it.

        Only what is left of the epoch can be left out.
        """
        rules = self._source.rules
        if rules is None or not rules.skip_batches:
            return
        jumps = self._exchange.share(self._source.jumps)
        new = {n: s for n, s in jumps.items() if n > position.rolled_back and s > position.step}
        if not new:
            return
        # An attempt that jumped again began with what the one before had left out.
        batches = sum(step - position.step for step in new.values())
        position.batch += batches
        _keep_places(position, samples, self.batch_size(position))
        position.rolled_back = max(new)
        tell(f"left out {batches} batches, up to the jump of the loss at step {max(new.values())}")

    # Guards -------------------------------------------------------------------------------------

    def heed_loss(self, loss: float, step: int, finish: Callable[[], None]) -> None:
        """Look at the loss of a step before its update.

        Args:
            finish: called before the attempt ends, so that a checkpoint can be completed.

        Raises:
            UserFault: a guard ends the attempt.
        """
        if stopped := self._guards.after_loss(loss, step):
            finish()
            self._keep(stopped)
            raise UserFault(stopped.reason, hint=stopped.hint)

    def check(self, names: Iterable[str]) -> None:
        """Check before the first step that an epoch may report the metric that has to improve.

        Raises:
            UserFault: no epoch ever does.
        """
        reported = sorted(names)
        if (name := self._guards.metric) and name not in reported:
            raise UserFault(
                f"stop.plateau.metric is {name!r}, which no epoch reports",
                hint=f"reported are {', '.join(reported)}; validation_… needs validation data",
            )

    def reached_plateau(self, position: Position) -> bool:
        """Return whether a plateau ends the training after this epoch.

        With a `patience` the loop counts its epochs; otherwise the supervisor has found a plateau.
        """
        rule, name = self._rules.plateau, self._guards.metric
        if rule is None:
            return False
        if rule.patience:
            values = [epoch[name] for epoch in position.history if name in epoch]
            stopped = self._guards.after_report(values, position.step)
        else:
            stopped = self._exchange.share(self._source.plateau())
        if stopped:
            self._keep(stopped)
        return stopped is not None

    def _keep(self, stopped: Stopped) -> None:
        if self._exchange.rank == 0:
            self._source.keep(stopped)
        self._exchange.barrier()  # the end of another learner may end learner 0


def _event(number: int, order: Order, problem: str) -> str:
    values = ", ".join(f"{name}={value:g}" for name, value in order.values.items())
    change = f"tuned {values}" if values else "asked for a checkpoint"
    return f"order {number}: {change}" + (f", refused: {problem}" if problem else "")


def _tune(order: Order, trained: Trained, position: Position) -> str:
    """Change what an order asks for; return why nothing was changed."""
    groups: list[dict[str, Any]] = trained.parts.optimizer.param_groups
    for name in ("momentum", "weight_decay"):
        if name in order.values and name not in groups[0]:
            return f"the optimizer {type(trained.parts.optimizer).__name__} has no {name}"
    for name, value in order.values.items():
        if name == "lr":
            trained.schedule.set_rate(value)
        elif name in ("batch_size", "clip_gradient_norm"):
            position.tuned[name] = value
        else:
            for group in groups:
                group[name] = value
    return ""


def _keep_places(position: Position, samples: int, batch_size: int) -> None:
    """Note what is done of an epoch by places, before batches get another size."""
    left = places_left(samples, position.epoch, position.done)
    done = left[: min(len(left), position.batch * batch_size)]
    edges = np.flatnonzero(np.diff(done) > 1) + 1
    first = position.epoch * samples
    for run in np.split(done, edges) if len(done) else []:
        position.done.append((first + int(run[0]), first + int(run[-1]) + 1))
    position.batch = 0
