"""The learning rate as a function of the step: from the manifest's schedule, or the user's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR, ReduceLROnPlateau

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


class BatchSchedule(UserSchedule):
    """A torch learning-rate scheduler, stepped once after each batch."""

    _STEPS = "steps_of_loop"

    def __init__(self, scheduler: Any) -> None:
        super().__init__(scheduler)
        self._steps = 0

    def before_step(self, step: int) -> None:
        """Step the scheduler to its state after `step` batches."""
        while self._steps < step:
            self._steps += 1
            self._scheduler.step()

    def after_epoch(self, loss: float) -> None:
        """Do nothing: an epoch's last batch has stepped the scheduler, too."""

    def state_dict(self) -> dict[str, Any]:
        """Return the scheduler's state, and how often it was stepped."""
        return {**super().state_dict(), self._STEPS: self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the scheduler's state."""
        rest = dict(state)
        self._steps = rest.pop(self._STEPS, rest.get("last_epoch", 0))
        super().load_state_dict(rest)


def user_schedule(
    scheduler: Any, pace: str, epochs: int, batches: int, say: Callable[[str], None]
) -> UserSchedule:
    """Return the schedule of a user's scheduler.

    Args:
        scheduler: of torch.
        pace: "epoch" or "batch": after which it takes a step; "" if the user does not say.
        epochs: of the training.
        batches: of an epoch.
        say: prints a warning.

    Raises:
        UserFault: the scheduler may be meant for the other pace, or takes fewer steps.
    """
    name, steps = type(scheduler).__name__, epochs * batches
    ask = 'return "schedule": {"scheduler": schedule, "step": "batch"}, or "epoch" if that is meant'
    length = _length(scheduler)
    if not pace and isinstance(scheduler, (OneCycleLR, CyclicLR)) and length != epochs:
        raise UserFault(
            f"build returned the schedule {name}, which is made for a step after each batch; the "
            "built-in loop steps a schedule once an epoch",
            hint=ask,
        )
    if not pace and batches > 1 and length >= steps:
        say(
            f"WARNING: the schedule {name} spans {length} steps, and gets one an epoch, {epochs}; "
            f"if each batch is to be a step, {ask}"
        )
    if pace == "batch" and isinstance(scheduler, ReduceLROnPlateau):
        raise UserFault(
            f"the schedule {name} can't step after each batch: it goes by the loss of an epoch",
            hint='return it without "step"',
        )
    last = steps - 1 if pace == "batch" else epochs  # nothing follows the last batch's step
    if isinstance(scheduler, OneCycleLR) and last > length:
        raise UserFault(
            f"the schedule {name} ends after {length} steps, and the training takes {last}: "
            f"{epochs} epochs of {batches} batches",
            hint=f"give it total_steps={steps if pace == 'batch' else epochs}",
        )
    return BatchSchedule(scheduler) if pace == "batch" else UserSchedule(scheduler)


def _length(scheduler: Any) -> int:
    """Return after how many steps a scheduler of torch reaches its end, or its first turn."""
    names = ("total_steps", "total_size", "total_iters", "T_max", "T_0", "step_size")
    own = [getattr(scheduler, name, 0) for name in names]
    own += [*getattr(scheduler, "milestones", ()), *getattr(scheduler, "_milestones", ())]
    own += [_length(each) for each in getattr(scheduler, "_schedulers", ())]
    return int(max(own))


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
