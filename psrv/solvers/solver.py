"""Solvers with their settings: what a learner sends, what the server keeps, what a push does.

A user's own solver is a class in their `train.py`, derived from `Solver` or of the form of
`RoundSolver`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from dlctl.contract import ELASTICITY, OUTER_LEARNING_RATE, OUTER_MOMENTUM, ParameterServer
from psrv.errors import ServerError
from psrv.solvers import update_rules

Parts = Sequence[Tensor]
"""A block's part of each row of the server: of the weights, then of what the solver keeps."""


class Solver(Protocol):
    """Applies each push as it comes, block by block.

    `server` holds the weights of a block first, then the rows that the solver keeps. On a node that
    is not the shard's primary, `gather` adds up pushes for the primary, which applies them with
    `merge`. Both have defaults for learners that push gradients.
    """

    rows: int = 0
    """How many rows the server keeps beside the weights; zeros at first."""
    sends_weights: bool = False
    """Whether learners push their weights; otherwise gradients, added up since the last push."""
    total_is_step: bool = False
    """Whether `gather` moves the replica as the primary's weights will move by the total."""

    def push(self, server: Parts, mine: Tensor, scratch: Tensor, rate: float) -> None:
        """Apply what a learner sends.

        Args:
            server: The block's rows.
            mine: What the learner sends.
            scratch: Of the same shape; may be overwritten.
            rate: The learning rate of this moment.
        """
        ...

    def answer(self, server: Parts, mine: Tensor) -> None:
        """Give the learner its new weights, after its push."""
        mine.copy_(server[0])

    def push_pull(
        self, server: Parts, mine: Tensor, into: Tensor, scratch: Tensor, rate: float
    ) -> None:
        """Apply what a learner sends, and give it its new weights."""
        self.push(server, mine, scratch, rate)
        self.answer(server, into)

    def gather(
        self, replica: Tensor, total: Tensor, mine: Tensor, scratch: Tensor, rate: float
    ) -> None:
        """Add what a learner sends to the total for the primary; may change the learner's weights.

        Only with `total_is_step` may it change the replica, too.
        """
        del replica, scratch, rate
        total.add_(mine)

    def merge(self, server: Parts, total: Tensor, pushes: int, rate: float) -> None:
        """Apply, on the primary, the total that a node has gathered from several pushes."""
        del pushes
        self.push(server, total, torch.empty_like(total), rate)


@runtime_checkable
class RoundSolver(Protocol):
    """Waits until all learners have pushed, and takes one step for their sum, block by block."""

    @property
    def rows(self) -> int:
        """Return how many rows the server keeps beside the weights and the sum."""

    sends_weights: bool

    def step(self, server: Parts, total: Tensor, count: int, rate: float) -> None:
        """Take a step for the sum of `count` learners' values, which may be overwritten."""


def _descend(
    server: Parts, gradient: Tensor, rate: float, momentum: float, copy: Tensor | None = None
) -> None:
    if momentum:
        update_rules.momentum(server[0], server[1], gradient, lr=rate, momentum=momentum, copy=copy)
    else:
        update_rules.sgd(server[0], gradient, lr=rate, copy=copy)


@dataclass(frozen=True)
class Downpour(Solver):
    """Downpour SGD: one step of the server for each gradient, whenever it comes.

    (Dean et al., Large Scale Distributed Deep Networks, 2012, section 4.1.) With a scale of one
    over the number of learners it is asynchronous parallel SGD; with bounded staleness it is
    stale-synchronous (Ho et al., More Effective Distributed ML via a Stale Synchronous Parallel
    Parameter Server, 2013).
    """

    momentum: float = 0.0
    scale: float = 1.0
    """Multiplies the rate of each push."""

    @property
    def rows(self) -> int:  # type: ignore[override]  # nobody sets it
        """Return 1 with momentum."""
        return int(self.momentum != 0)

    def push(self, server: Parts, mine: Tensor, scratch: Tensor, rate: float) -> None:
        """Take a step."""
        del scratch
        _descend(server, mine, rate * self.scale, self.momentum)

    def push_pull(
        self, server: Parts, mine: Tensor, into: Tensor, scratch: Tensor, rate: float
    ) -> None:
        """Write the step to the learner's memory first, which is faster."""
        alike = into.dtype == server[0].dtype and into.device == server[0].device
        if alike and type(self) is Downpour:  # a derived solver may push and answer differently
            _descend(server, mine, rate * self.scale, self.momentum, into)
        else:
            super().push_pull(server, mine, into, scratch, rate)

    def merge(self, server: Parts, total: Tensor, pushes: int, rate: float) -> None:
        """Take a step for a node's total, without memory for scratch."""
        del pushes
        self.push(server, total, total, rate)


@dataclass(frozen=True)
class DownpourAdagrad(Solver):
    """Downpour SGD with Adagrad on the server, as its authors recommend."""

    epsilon: float = 1e-10
    rows = 1

    def push(self, server: Parts, mine: Tensor, scratch: Tensor, rate: float) -> None:
        """Take a step."""
        del scratch
        update_rules.adagrad(server[0], server[1], mine, lr=rate, epsilon=self.epsilon)


@dataclass(frozen=True)
class ElasticAveraging(Solver):
    """EASGD: a learner and the center attract each other (Zhang, Choromanska, LeCun, 2015).

    Each push moves a replica of the center by the same difference that the center will move by; the
    differences are added up.
    """

    alpha: float
    sends_weights = True
    total_is_step = True

    def push(self, server: Parts, mine: Tensor, scratch: Tensor, rate: float) -> None:
        """Move the center and the learner."""
        del rate
        update_rules.elastic(server[0], mine, scratch, alpha=self.alpha)

    def answer(self, server: Parts, mine: Tensor) -> None:
        """Do nothing: the push has moved the learner's weights already."""

    def gather(
        self, replica: Tensor, total: Tensor, mine: Tensor, scratch: Tensor, rate: float
    ) -> None:
        """Move the replica and the learner, and add the difference to the total."""
        self.push([replica], mine, scratch, rate)
        total.add_(scratch, alpha=self.alpha)

    def merge(self, server: Parts, total: Tensor, pushes: int, rate: float) -> None:
        """Move the center as its replica was moved."""
        del pushes, rate
        server[0].add_(total)


@dataclass(frozen=True)
class ParallelSGD:
    """Synchronous SGD: one step for the mean of all learners' gradients.

    (Zinkevich et al., Parallelized Stochastic Gradient Descent, 2010, in its synchronous mini-batch
    form: Dekel et al., Optimal Distributed Online Prediction Using Mini-Batches, 2012.)
    """

    momentum: float = 0.0
    sends_weights = False

    @property
    def rows(self) -> int:
        """Return 1 with momentum."""
        return int(self.momentum != 0)

    def step(self, server: Parts, total: Tensor, count: int, rate: float) -> None:
        """Take the step."""
        _descend(server, total.div_(count), rate, self.momentum)


@dataclass(frozen=True)
class ModelAveraging:
    """The weights become the mean of the learners'."""

    rows = 0
    sends_weights = True

    def step(self, server: Parts, total: Tensor, count: int, rate: float) -> None:
        """Take the mean."""
        del rate
        update_rules.average(server[0], total, count=count)


@dataclass(frozen=True)
class DiLoCo:
    """Model averaging with an outer Nesterov optimizer, for slow links and long periods."""

    lr: float = OUTER_LEARNING_RATE
    """The outer learning rate: no schedule changes it."""
    momentum: float = OUTER_MOMENTUM
    rows = 1
    sends_weights = True

    def step(self, server: Parts, total: Tensor, count: int, rate: float) -> None:
        """Take the outer step."""
        del rate
        update_rules.outer_nesterov(
            server[0], server[1], total, count=count, lr=self.lr, momentum=self.momentum
        )


def solver_of(settings: ParameterServer, learners: int) -> Solver | RoundSolver:
    """Return the solver of a plan.

    Args:
        settings: The plan's.
        learners: How many there are.

    Raises:
        ServerError: The plan names a user's own solver, which their `build` makes.
    """
    momentum = settings.momentum or 0.0
    if settings.solver == "parallel_sgd":
        if settings.staleness:
            return Downpour(momentum, scale=1 / learners)
        return ParallelSGD(momentum)
    if settings.solver == "downpour_sgd":
        return DownpourAdagrad() if settings.adagrad else Downpour(momentum)
    if settings.solver == "elastic_averaging":
        alpha = settings.moving_rate
        return ElasticAveraging(ELASTICITY / learners if alpha is None else alpha)
    if settings.solver == "model_averaging":
        return ModelAveraging()
    if settings.solver == "diloco":
        lr, momentum_or_none = settings.learning_rate, settings.momentum
        return DiLoCo(
            DiLoCo.lr if lr is None else lr,
            DiLoCo.momentum if momentum_or_none is None else momentum_or_none,
        )
    raise ServerError(
        f"parameter_server has the solver {settings.solver!r}, which dlctl does not make",
        hint="return a solver of your own from build in the training's file",
    )
