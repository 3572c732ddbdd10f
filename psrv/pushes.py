"""How a push reaches one shard: at once, or in a round of all learners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from psrv.rounds import Rounds
from psrv.rules import RoundSolver, Solver
from psrv.shard import Operation, Shard

_GOLDEN = 616
"""997 times the golden ratio: multiples of it lie evenly in the whole, however many there are."""


class Pushes(Protocol):
    """Tensors of shape (count,), the shard's."""

    def push(self, mine: torch.Tensor, into: torch.Tensor | None, rate: float) -> None:
        """Send; with `into` the answer is going to be asked for next."""

    def answer(self, into: torch.Tensor) -> None:
        """Take what the solver answers to the push."""

    def pull(self, into: torch.Tensor) -> None:
        """Take the weights as they are; after a push in a round, as they are at its end."""


class AtOnce:
    """The weights take every push in as it comes; the answer with it, while it is in the cache."""

    def __init__(self, shard: Shard, solver: Solver) -> None:
        self._shard = shard
        self._solver = solver
        # Far from where the others begin.
        self._first = shard.slot * _GOLDEN % 997 * shard.layout.blocks // 997

    def push(self, mine: torch.Tensor, into: torch.Tensor | None, rate: float) -> None:
        """Work on every block."""
        solver, step = self._solver, self._shard.layout.block_count
        sent = torch.split(mine, step)
        taken = None if into is None else torch.split(into, step)
        scratch = torch.empty(step, dtype=mine.dtype)

        def work(parts: Sequence[torch.Tensor], block: int) -> None:
            solver.push(parts, sent[block], scratch[: len(sent[block])], rate)
            if taken is not None:
                solver.answer(parts, taken[block])

        self._shard.update(work, self._first)

    def answer(self, into: torch.Tensor) -> None:
        """Do nothing: the push has done it."""

    def pull(self, into: torch.Tensor) -> None:
        """Copy every block."""
        self._shard.read(_copying(self._shard, into), self._first)


class InRounds:
    """The weights take one step for all learners' pushes."""

    def __init__(
        self, shard: Shard, solver: RoundSolver, rank: int, learners: int, timeout_s: float
    ) -> None:
        self._shard = shard
        self._solver = solver
        self._rounds = Rounds(shard, rank, learners, timeout_s)
        self._open = False
        self._rate = 0.0

    def push(self, mine: torch.Tensor, into: torch.Tensor | None, rate: float) -> None:
        """Add to the sum."""
        del into
        if self._open:
            self._rounds.finish(self._step, _ignore)
        self._open, self._rate = True, rate
        self._rounds.add(torch.split(mine, self._shard.layout.block_count), self._step)

    def answer(self, into: torch.Tensor) -> None:
        """Wait for the end of the round, and take the weights."""
        copy = _copying(self._shard, into)
        self._open = False
        self._rounds.finish(self._step, lambda weights, block: copy([weights], block))

    def pull(self, into: torch.Tensor) -> None:
        """Take the weights."""
        if self._open:
            self.answer(into)
        else:
            self._shard.read(_copying(self._shard, into))

    def _step(
        self, server: Sequence[torch.Tensor], total: torch.Tensor, count: int, block: int
    ) -> None:
        del block
        self._solver.step(server, total, count, self._rate)


def _copying(shard: Shard, into: torch.Tensor) -> Operation:
    taken = torch.split(into, shard.layout.block_count)

    def copy(parts: Sequence[torch.Tensor], block: int) -> None:
        taken[block].copy_(parts[0])

    return copy


def _ignore(weights: torch.Tensor, block: int) -> None:
    """Take nothing."""
