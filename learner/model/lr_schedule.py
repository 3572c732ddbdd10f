"""The learning rate as a function of the step: from the manifest's schedule, or the user's."""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from dlctl.contract import LearningRateSchedule
from learner.errors import UserFault

NAMES = ("constant", "step", "exponential", "cosine", "linear")


def factor(
    schedule: LearningRateSchedule, step: int, steps_per_epoch: int, total_steps: int
) -> float:
    """Return the factor on the learning rate for the step after `step` finished ones."""
    if step < schedule.warmup_steps:
        return (step + 1) / schedule.warmup_steps  # a step at rate 0 would be lost
    epoch = step // steps_per_epoch
    if schedule.name == "constant":
        return 1.0
    if schedule.name == "step":
        return float(schedule.gamma ** (epoch // schedule.step_epochs))
    if schedule.name == "exponential":
        return float(schedule.gamma**epoch)
    last = max(1, total_steps - schedule.warmup_steps)
    done = min(1.0, (step - schedule.warmup_steps) / last)
    rest = 1.0 - schedule.final_factor
    if schedule.name == "cosine":
        return schedule.final_factor + rest * 0.5 * (1.0 + math.cos(math.pi * done))
    if schedule.name == "linear":
        return schedule.final_factor + rest * (1.0 - done)
    raise UserFault(
        f"training.learning_rate_schedule.name is {schedule.name!r}",
        hint=f"allowed are {', '.join(NAMES)}",
    )


class Schedule(Protocol):
    """A schedule, which sets the optimizer's learning rates."""

    def before_step(self, step: int) -> None:
        """Set the rates for the step after `step` finished ones."""

    def after_epoch(self, loss: float) -> None:
        """Note the end of an epoch; `loss` is the validation loss, or else the training loss."""

    def set_rate(self, rate: float) -> None:
        """Set the first group's rate, and scale the others', from the next step on."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""


class ManifestSchedule:
    """A schedule that multiplies the initial rates of the user's optimizer by a factor."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        schedule: LearningRateSchedule,
        steps_per_epoch: int,
        epochs: int,
    ) -> None:
        self._optimizer = optimizer
        self._schedule = schedule
        self._steps_per_epoch = steps_per_epoch
        self._total_steps = steps_per_epoch * epochs
        self._base = [float(group["lr"]) for group in optimizer.param_groups]

    def before_step(self, step: int) -> None:
        """Set the rates for the step after `step` finished ones."""
        scale = factor(self._schedule, step, self._steps_per_epoch, self._total_steps)
        for group, base in zip(self._optimizer.param_groups, self._base, strict=True):
            set_learning_rate(group, base * scale)

    def after_epoch(self, loss: float) -> None:
        """Do nothing: the factor depends on the step alone."""

    def set_rate(self, rate: float) -> None:
        """Set the rates that the factor multiplies."""
        self._base = _scaled(self._base, rate)

    def state_dict(self) -> dict[str, Any]:
        """Return the base rates."""
        return {"base": self._base}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the base rates of the run that is resumed."""
        if len(state.get("base", [])) == len(self._base):
            self._base = list(state["base"])


class UserSchedule:
    """A torch learning-rate scheduler, stepped once per epoch."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler

    def before_step(self, step: int) -> None:
        """Do nothing: torch's schedulers act at the end of an epoch."""

    def after_epoch(self, loss: float) -> None:
        """Step the scheduler."""
        if isinstance(self._scheduler, ReduceLROnPlateau):
            self._scheduler.step(loss)
        else:
            self._scheduler.step()

    def set_rate(self, rate: float) -> None:
        """Set the optimizer's rates, and those that the scheduler begins from."""
        groups = self._scheduler.optimizer.param_groups
        first = float(groups[0]["lr"])
        for group, new in zip(groups, _scaled([float(g["lr"]) for g in groups], rate), strict=True):
            set_learning_rate(group, new)
        if first and hasattr(self._scheduler, "base_lrs"):
            ratio = rate / first
            self._scheduler.base_lrs = [base * ratio for base in self._scheduler.base_lrs]

    def state_dict(self) -> dict[str, Any]:
        """Return the scheduler's state."""
        return dict(self._scheduler.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the scheduler's state."""
        self._scheduler.load_state_dict(state)


def _scaled(rates: list[float], first: float) -> list[float]:
    """Return rates with another first one and the same ratios."""
    return [first * (rate / rates[0]) if rates[0] else first for rate in rates]


def set_learning_rate(group: dict[str, Any], rate: float) -> None:
    """Set one parameter group's rate, which is a number or a tensor."""
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


class UsedRate:
    """The current learning rate, for steps that the optimizer does not take itself.

    Args:
        optimizer: the optimizer that the schedule changes, before the first step.
        rate: the base rate for the schedule's factor; None: that of the optimizer's first group.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, rate: float | None = None) -> None:
        self._optimizer = optimizer  # load_state_dict makes new groups
        group = optimizer.param_groups[0]
        self._base = float(group.get("initial_lr", group["lr"]))
        self._rate = self._base if rate is None else rate

    def now(self) -> float:
        """Return the current rate."""
        rate = float(self._optimizer.param_groups[0]["lr"])
        if self._rate == self._base:
            return rate
        return self._rate * (rate / self._base if self._base else 1.0)
