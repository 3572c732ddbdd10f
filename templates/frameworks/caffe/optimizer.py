"""Caffe's solvers, with its learning-rate policies and multipliers of each blob."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from .solver import Solver


class CaffeOptimizer(torch.optim.Optimizer):
    """Updates as Caffe does: the learning rate is part of the momentum's history.

    Args:
        groups: For each parameter a dict with `params`, `lr_mult` and `decay_mult`.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], solver: Solver) -> None:
        self._solver = solver
        super().__init__(groups, {"lr": solver.base_lr, "iteration": 0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Take one iteration's step."""
        loss = closure() if closure is not None else None
        solver = self._solver
        scale = self._clip_factor()
        for group in self.param_groups:
            iteration = int(group["iteration"])
            rate = solver.rate(iteration) * group["lr_mult"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                gradient = parameter.grad * scale
                decay = solver.weight_decay * group["decay_mult"]
                if decay:
                    is_l1 = solver.regularization_type == "L1"
                    gradient = gradient.add(parameter.sign() if is_l1 else parameter, alpha=decay)
                parameter.sub_(self._update(parameter, gradient, rate, iteration))
            group["lr"] = rate
            group["iteration"] = iteration + 1
        return loss

    def _update(
        self, parameter: torch.Tensor, gradient: torch.Tensor, rate: float, iteration: int
    ) -> torch.Tensor:
        solver, state = self._solver, self.state[parameter]
        if "history" not in state:
            state["history"] = torch.zeros_like(parameter)
            if solver.type in ("Adam", "AdaDelta"):
                state["square"] = torch.zeros_like(parameter)
        history: torch.Tensor = state["history"]
        if solver.type == "Adam":
            square: torch.Tensor = state["square"]
            history.mul_(solver.momentum).add_(gradient, alpha=1 - solver.momentum)
            square.mul_(solver.momentum2).addcmul_(gradient, gradient, value=1 - solver.momentum2)
            t = iteration + 1
            correction = math.sqrt(1 - solver.momentum2**t) / (1 - solver.momentum**t)
            return history / (square.sqrt() + solver.delta) * (rate * correction)
        if solver.type == "AdaGrad":
            history.addcmul_(gradient, gradient)
            return gradient / (history.sqrt() + solver.delta) * rate
        if solver.type == "RMSProp":
            decay = solver.rms_decay
            history.mul_(decay).addcmul_(gradient, gradient, value=1 - decay)
            return gradient / (history.sqrt() + solver.delta) * rate
        if solver.type == "AdaDelta":
            decay, updates = solver.momentum, state["square"]
            history.mul_(decay).addcmul_(gradient, gradient, value=1 - decay)
            ratio = (updates + solver.delta) / (history + solver.delta)
            update: torch.Tensor = gradient * ratio.sqrt()
            updates.mul_(decay).addcmul_(update, update, value=1 - decay)
            return update * rate
        if solver.type == "Nesterov":
            before = history.clone()
            history.mul_(solver.momentum).add_(gradient, alpha=rate)
            return (1 + solver.momentum) * history - solver.momentum * before
        return history.mul_(solver.momentum).add_(gradient, alpha=rate)

    def _clip_factor(self) -> float:
        limit = self._solver.clip_gradients
        if limit <= 0:
            return 1.0
        gradients = [p.grad for g in self.param_groups for p in g["params"] if p.grad is not None]
        norm = float(torch.stack([g.norm() for g in gradients]).norm()) if gradients else 0.0
        return limit / norm if norm > limit else 1.0
