"""How a push reaches one shard: at once, or in a round of all learners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from psrv.members import RANKS
from psrv.rounds import Rounds
from psrv.rules import RoundSolver, Solver
from psrv.shard import Operation, Shard
from psrv.shard_file import HOME

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
    """The weights take every push in as it comes; the answer with it, while it is in the cache.

    On a relay the push is gathered for the home, and the answer is the replica.
    """

    def __init__(self, shard: Shard, solver: Solver, rank: int) -> None:
        self._shard = shard
        self._solver = solver
        # Far from where the others begin.
        self._first = shard.slot * _GOLDEN % 997 * shard.layout.blocks // 997
        shard.members.enter(shard.slot, 1 << rank % RANKS)

    def push(self, mine: torch.Tensor, into: torch.Tensor | None, rate: float) -> None:
        """Work on every block."""
        shard, solver, step = self._shard, self._solver, self._shard.layout.block_count
        sent = torch.split(mine, step)
        taken = None if into is None else torch.split(into, step)
        scratch = torch.empty(step, dtype=mine.dtype)
        shard.rate = rate

        def push(parts: Sequence[torch.Tensor], block: int) -> None:
            solver.push(parts, sent[block], scratch[: len(sent[block])], rate)
            if taken is not None:
                solver.answer(parts, taken[block])
            pushes, exchange = shard.progress(block)
            shard.set_progress(block, pushes + 1, exchange)

        def gather(parts: Sequence[torch.Tensor], block: int) -> None:
            mine = sent[block]
            solver.gather(parts[0], parts[1], mine, scratch[: len(mine)], rate)
            if taken is not None:
                solver.answer(parts[:1], taken[block])
            pushes, gathered = shard.progress(block)
            shard.set_progress(block, pushes, gathered + 1)

        if shard.layout.kind == HOME:
            shard.update(push, self._first)
        else:
            shard.update(gather, self._first, row=0 if solver.total_is_step else 1)

    def answer(self, into: torch.Tensor) -> None:
        """Do nothing: the push has done it."""

    def pull(self, into: torch.Tensor) -> None:
        """Copy every block."""
        self._shard.read(copying(self._shard, into), self._first)


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
        self._open, self._rate, self._shard.rate = True, rate, rate
        self._rounds.add(torch.split(mine, self._shard.layout.block_count), self._step)

    def answer(self, into: torch.Tensor) -> None:
        """Wait for the end of the round, and take the weights."""
        copy = copying(self._shard, into)
        self._open = False
        self._rounds.finish(self._step, lambda weights, block: copy([weights], block))

    def pull(self, into: torch.Tensor) -> None:
        """Take the weights."""
        if self._open:
            self.answer(into)
        else:
            self._shard.read(copying(self._shard, into))

    def _step(
        self, server: Sequence[torch.Tensor], total: torch.Tensor, count: int, block: int
    ) -> None:
        del block
        self._solver.step(server, total, count, self._rate)


def copying(shard: Shard, into: torch.Tensor, row: int = 0) -> Operation:
    """Return what copies a row of each block that is read."""
    taken = torch.split(into, shard.layout.block_count)

    def copy(parts: Sequence[torch.Tensor], block: int) -> None:
        taken[block].copy_(parts[row])

    return copy


def _ignore(weights: torch.Tensor, block: int) -> None:
    """Take nothing."""
