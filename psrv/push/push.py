"""Brings a learner's push to the shards: at once, or in a round of all learners."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate, pairwise

import torch

from psrv.push.flow_control import Outgoing
from psrv.push.rounds import Rounds, Turn, missing, settle
from psrv.push.waiting import WaitPolicy
from psrv.shard.format import COUNT, PRIMARY, REPLICA
from psrv.shard.membership import RANKS
from psrv.shard.shard import Operation, Rows, Shard
from psrv.solvers.native import is_plain, native_for
from psrv.solvers.solver import RoundSolver, Solver

_Parts = Sequence[torch.Tensor]
_GOLDEN = 616
"""997 divided by the golden ratio: its multiples modulo 997 are spread evenly, for any number of
slots."""


def replicas(shards: Iterable[Shard]) -> list[Shard]:
    """Return the replicas among shards, without empty ones: their primary is another node."""
    return [shard for shard in shards if shard.layout.kind == REPLICA and shard.layout.blocks]


def ranges(shards: Sequence[Shard]) -> list[slice]:
    """Return the range of elements of each shard."""
    ends = accumulate((shard.layout.count for shard in shards), initial=0)
    return [slice(start, stop) for start, stop in pairwise(ends)]


class AtOnce:
    """Pushes of a solver that applies each push as it comes."""

    def __init__(self, shards: Sequence[Shard], solver: Solver, rank: int) -> None:
        size_bytes = sum(shard.rows[0].nbytes for shard in shards)
        parts = [
            (_AtOnce(shard, solver, rank, size_bytes), part)
            for shard, part in zip(shards, ranges(shards), strict=True)
        ]
        # Replicas first: their pushes travel while the other shards are worked on.
        self._parts = sorted(parts, key=lambda part: part[0].is_primary)

    def push(self, mine: torch.Tensor, into: torch.Tensor | None, rate: float) -> None:
        """Push values of shape (count,), over all shards; `into` also gets the solver's answer."""
        for shard, part in self._parts:
            shard.push(mine[part], None if into is None else into[part], rate)

    def pull(self, into: torch.Tensor) -> None:
        """Copy the weights of every block."""
        for shard, part in self._parts:
            shard.pull(into[part])

    def leave(self) -> Callable[[], bool]:
        """Return a function that tells whether all pushes have reached their primaries.

        Call it repeatedly. The slots are released later.
        """
        return Outgoing(replicas(shard.shard for shard, _ in self._parts)).has_come


class _AtOnce:
    """Pushes to one shard; the answer is copied with the push, while a block is in the cache.

    On a replica the push is gathered for the primary, and the answer is the replica's weights.
    """

    def __init__(self, shard: Shard, solver: Solver, rank: int, size_bytes: int) -> None:
        self.shard = shard
        self._solver = solver
        self._native = native_for(shard, solver, size_bytes)
        self.is_primary = shard.layout.kind == PRIMARY
        self._step = shard.layout.block_count
        self._scratch = torch.empty(self._step, dtype=shard.layout.dtypes[0], device="cpu")
        # Start far from the other learners.
        self._first = shard.slot * _GOLDEN % 997 * shard.layout.blocks // 997
        shard.members.enter(shard.slot, 1 << rank % RANKS)

    def push(self, mine: torch.Tensor, into: torch.Tensor | None, rate: float) -> None:
        """Push to every block."""
        shard = self.shard
        shard.rate = rate
        if self._native is not None and is_plain(mine) and is_plain(into):
            operation, copied = self._native.pushing(mine, into, rate), False
        else:
            sent = torch.split(mine, self._step)
            taken = None if into is None else torch.split(into, self._step)
            operate = self._pushing if self.is_primary else self._gathering
            operation, copied = operate(sent, taken, rate), True
        gathers = partial(self._gather_changes, copied)
        changes = Rows(copied=copied) if self.is_primary else gathers
        shard.update(operation, self._first, changes=changes)

    def _gather_changes(self, copied: bool, block: int) -> Rows:
        """Return the rows that gathering changes; an empty total needs no undo copy."""
        empty = not self.shard.progress(block)[1] & COUNT
        return Rows(0 if self._solver.total_is_step else 1, 1 if empty else 2, copied)

    def _pushing(self, sent: _Parts, taken: _Parts | None, rate: float) -> Operation:
        scratch, count = self._scratch, self.shard.count_push
        push, push_pull = self._solver.push, self._solver.push_pull

        def work(parts: Sequence[torch.Tensor], block: int) -> None:
            if taken is None:
                push(parts, sent[block], scratch[: len(sent[block])], rate)
            else:
                aside = scratch[: len(sent[block])]
                push_pull(parts, sent[block], taken[block], aside, rate)
            count(block)

        return work

    def _gathering(self, sent: _Parts, taken: _Parts | None, rate: float) -> Operation:
        scratch, count = self._scratch, self.shard.count_push
        gather, answer = self._solver.gather, self._solver.answer
        progress = self.shard.progress
        only_adds = type(self._solver).gather is Solver.gather

        def work(parts: Sequence[torch.Tensor], block: int) -> None:
            empty = not progress(block)[1] & COUNT
            if empty and only_adds:
                parts[1].copy_(sent[block])  # half the time of zeros and a sum
            else:
                if empty:
                    parts[1].zero_()
                gather(parts[0], parts[1], sent[block], scratch[: len(sent[block])], rate)
            if taken is not None:
                answer(parts[:1], taken[block])
            count(block)

        return work

    def pull(self, into: torch.Tensor) -> None:
        """Copy the weights of every block."""
        self.shard.read(copying(torch.split(into, self._step)), self._first)


class InRounds:
    """Pushes of a solver in rounds, which takes one step for the pushes of all learners."""

    def __init__(
        self,
        shards: Sequence[Shard],
        solver: RoundSolver,
        rank: int,
        learners: int,
        wait_policy: WaitPolicy,
    ) -> None:
        self._solver = solver
        self._turn = Turn(shards, rank, learners, wait_policy)
        self._shards = shards
        self._step = shards[0].layout.block_count
        self._parts = [
            (Rounds(shard, self._turn, native_for(shard, solver)), part)
            for shard, part in zip(shards, ranges(shards), strict=True)
        ]
        self._open = False

    def push(self, mine: torch.Tensor, into: torch.Tensor | None, rate: float) -> None:
        """Add to the sum; with `into`, wait for the end of the round and copy the weights."""
        if self._open:
            self._finish(None)
        self._turn.catch_up()
        self._open = True
        for rounds, part in self._parts:
            rounds.add(torch.split(mine[part], self._step), rate, self._solver.step)
        if into is not None:
            self._finish(into)

    def pull(self, into: torch.Tensor) -> None:
        """Copy the weights, at the end of the open round if there is one."""
        if self._open:
            self._finish(into)
            return
        for shard, (_, part) in zip(self._shards, self._parts, strict=True):
            shard.read(copying(torch.split(into[part], self._step)))

    def leave(self) -> Callable[[], bool]:
        """Leave the rounds, and end those that were waiting for this learner only; see `AtOnce`.

        Learners that added to them may have left before their end. A replica gets the end from the
        primary.
        """
        for shard in self._shards:
            shard.members.pause(shard.slot)
            shard.members.remove_dead()
            for block, (rounds, added) in enumerate(shard.all_progress()):
                if shard.layout.kind == PRIMARY and added and not missing(shard, rounds, added):
                    settle(shard, block, rounds, self._solver.step)
        sums = [shard.all_added() for shard in replicas(self._shards)]
        return lambda: not any((added & self._turn.mask).any() for added in sums)

    def _finish(self, into: torch.Tensor | None) -> None:
        """Wait for the end of the round in all shards."""
        for rounds, part in self._parts:
            blocks = None if into is None else torch.split(into[part], self._step)
            rounds.finish(self._solver.step, partial(_take, blocks))
        self._open = False
        self._turn.number += 1


Pushes = AtOnce | InRounds
"""How a learner works on all shards. Flat tensors of shape (count,) cover all of them."""


def copying(taken: _Parts, row: int = 0) -> Operation:
    """Return an operation that copies a row of each block that is read, into that block's part."""

    def copy(parts: Sequence[torch.Tensor], block: int) -> None:
        taken[block].copy_(parts[row])

    return copy


def _take(blocks: _Parts | None, weights: torch.Tensor, block: int) -> None:
    if blocks is not None:
        blocks[block].copy_(weights)
