"""Learners draw weights to 1 with any solver: they train (w − 1)² / 2. Not a test by itself."""

from __future__ import annotations

import torch

from psrv.client import Client
from psrv.solvers.solver import (
    DiLoCo,
    Downpour,
    DownpourAdagrad,
    ElasticAveraging,
    ModelAveraging,
    ParallelSGD,
    RoundSolver,
    Solver,
)

SOLVERS: dict[str, Solver | RoundSolver] = {
    "downpour": Downpour(),
    "momentum": Downpour(momentum=0.5),
    "adagrad": DownpourAdagrad(),
    "elastic": ElasticAveraging(0.3),
    "parallel": ParallelSGD(momentum=0.3),
    "averaging": ModelAveraging(),
    "diloco": DiLoCo(0.5, 0.5),
}
RATES = {"downpour": 0.05, "momentum": 0.02, "adagrad": 0.2, "parallel": 0.1}
"""Of the steps of those that take gradients."""


def take_step(client: Client, weights: torch.Tensor, solver: str) -> None:
    """Train one step of a learner, whose weights these are."""
    if SOLVERS[solver].sends_weights:
        weights -= 0.2 * (weights - 1)
        client.push_pull(weights, weights, 0.0)
    else:
        client.push_pull(weights - 1, weights, RATES[solver])
