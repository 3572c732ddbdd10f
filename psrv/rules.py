"""Solvers with their settings: what a learner sends, what the server keeps, what a push does.

A user's own solver is one class of this form in their `train.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from psrv import solvers


class Solver(Protocol):
    """Takes every push in as it comes, block by block.

    `server` holds the weights of a block first, then the rows that the solver keeps.
    """

    rows: int
    """How many rows the server keeps beside the weights; zeros at first."""
    sends_weights: bool
    """Whether learners push their weights; otherwise gradients, added up since the last push."""

    def push(
        self, server: Sequence[torch.Tensor], mine: torch.Tensor, scratch: torch.Tensor
    ) -> None:
        """Take in what a learner sends; `scratch` is of the same shape, and may be overwritten."""

    def answer(self, server: Sequence[torch.Tensor], mine: torch.Tensor) -> None:
        """Give the learner its new weights, after its push."""


@runtime_checkable
class RoundSolver(Protocol):
    """Waits until all learners have pushed, and takes one step for their sum, block by block."""

    @property
    def rows(self) -> int:
        """Return how many rows the server keeps beside the weights and the sum."""

    sends_weights: bool

    def step(self, server: Sequence[torch.Tensor], total: torch.Tensor, count: int) -> None:
        """Take a step for the sum of `count` learners, which may be overwritten."""


@dataclass(frozen=True)
class _Descent:
    """Steps of SGD on the server, from gradients."""

    lr: float
    momentum: float = 0.0
    sends_weights = False

    @property
    def rows(self) -> int:
        """Return 1 with momentum."""
        return int(self.momentum != 0)

    def descend(self, server: Sequence[torch.Tensor], gradient: torch.Tensor) -> None:
        """Take a step; see psrv.solvers."""
        if self.momentum:
            solvers.momentum(server[0], server[1], gradient, lr=self.lr, momentum=self.momentum)
        else:
            solvers.sgd(server[0], gradient, lr=self.lr)


@dataclass(frozen=True)
class Downpour(_Descent):
    """Downpour SGD: gradients whenever they come, and a step of the server for each push.

    (Dean et al., Large Scale Distributed Deep Networks, 2012, section 4.1.)
    """

    def push(
        self, server: Sequence[torch.Tensor], mine: torch.Tensor, scratch: torch.Tensor
    ) -> None:
        """Take a step."""
        del scratch
        self.descend(server, mine)

    def answer(self, server: Sequence[torch.Tensor], mine: torch.Tensor) -> None:
        """Copy the weights."""
        mine.copy_(server[0])


@dataclass(frozen=True)
class DownpourAdagrad:
    """Downpour SGD with Adagrad on the server, as its authors recommend."""

    lr: float
    epsilon: float = 1e-10
    rows = 1
    sends_weights = False

    def push(
        self, server: Sequence[torch.Tensor], mine: torch.Tensor, scratch: torch.Tensor
    ) -> None:
        """Take a step."""
        del scratch
        solvers.adagrad(server[0], server[1], mine, lr=self.lr, epsilon=self.epsilon)

    def answer(self, server: Sequence[torch.Tensor], mine: torch.Tensor) -> None:
        """Copy the weights."""
        mine.copy_(server[0])


@dataclass(frozen=True)
class ElasticAveraging:
    """EASGD: a learner and the center draw each other (Zhang, Choromanska, LeCun, 2015)."""

    alpha: float
    rows = 0
    sends_weights = True

    def push(
        self, server: Sequence[torch.Tensor], mine: torch.Tensor, scratch: torch.Tensor
    ) -> None:
        """Move both."""
        solvers.elastic(server[0], mine, scratch, alpha=self.alpha)

    def answer(self, server: Sequence[torch.Tensor], mine: torch.Tensor) -> None:
        """Do nothing: the push has moved the learner's weights already."""


@dataclass(frozen=True)
class ParallelSGD(_Descent):
    """Synchronous SGD: one step for the mean of all learners' gradients.

    (Zinkevich et al., Parallelized Stochastic Gradient Descent, 2010, in its synchronous mini-batch
    form: Dekel et al., Optimal Distributed Online Prediction Using Mini-Batches, 2012.)
    """

    def step(self, server: Sequence[torch.Tensor], total: torch.Tensor, count: int) -> None:
        """Take the step."""
        self.descend(server, total.div_(count))


@dataclass(frozen=True)
class ModelAveraging:
    """The weights become the mean of the learners'."""

    rows = 0
    sends_weights = True

    def step(self, server: Sequence[torch.Tensor], total: torch.Tensor, count: int) -> None:
        """Take the mean."""
        solvers.average(server[0], total, count=count)


@dataclass(frozen=True)
class DiLoCo:
    """Model averaging with an outer Nesterov optimizer, for slow links and long periods."""

    lr: float = 0.7
    momentum: float = 0.9
    rows = 1
    sends_weights = True

    def step(self, server: Sequence[torch.Tensor], total: torch.Tensor, count: int) -> None:
        """Take the outer step."""
        solvers.outer_nesterov(
            server[0], server[1], total, count=count, lr=self.lr, momentum=self.momentum
        )
