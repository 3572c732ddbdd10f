"""How a push reaches one shard: at once, or in a round of all learners."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Protocol

import torch

from psrv.push.flow_control import Outgoing
from psrv.push.rounds import Rounds, Turn, missing, settle
from psrv.push.waiting import Patience
from psrv.shard.format import COUNT, HOME, RELAY
from psrv.shard.membership import RANKS
from psrv.shard.shard import Operation, Rows, Shard
from psrv.solvers.native import fused_for, fused_rounds_for, past_caches
from psrv.solvers.solver import RoundSolver, Solver

_Parts = Sequence[torch.Tensor]
_GOLDEN = 616
"""997 times the golden ratio: multiples of it lie evenly in the whole, however many there are."""


class Pushes(Protocol):
    """How all shards are worked on. Flat tensors of shape (count,) over all of them."""

    def push(self, mine: torch.Tensor, into: torch.Tensor | None, rate: float) -> None:
        """Send; with `into`, take what the solver answers."""

    def pull(self, into: torch.Tensor) -> None:
        """Take the weights as they are; after a push in a round, as they are at its end."""

    def leave(self) -> Callable[[], bool]:
        """Leave, so that nobody waits for this learner; its slots are given back afterwards.

        Returns:
            What tells whether all that it has pushed has come to its homes: ask again and again.
        """


def relays(shards: Iterable[Shard]) -> list[Shard]:
    """Return those whose home is another node; an empty one has nothing that could go there."""
    return [shard for shard in shards if shard.layout.kind == RELAY and shard.layout.blocks]


def ranges(shards: Sequence[Shard]) -> list[slice]:
    """Return which elements each shard has."""
    ends = accumulate((shard.layout.count for shard in shards), initial=0)
    return [slice(start, stop) for start, stop in pairwise(ends)]


class Cuts:
    """Tensors cut into blocks; the last one's are kept, for learners push the same ones again."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._last: torch.Tensor | None = None
        self._parts: Sequence[torch.Tensor] = ()

    def of(self, whole: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return the blocks of a tensor of shape (count,)."""
        last = self._last
        if last is None or not _same(last, whole):
            self._last, self._parts = whole, torch.split(whole, self._step)
        return self._parts


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors, both alive, are the same memory."""
    return (
        one.data_ptr() == other.data_ptr()
        and one.shape == other.shape
        and one.dtype == other.dtype
        and one.stride() == other.stride()
    )


class AtOnce:
    """The weights take every push in as it comes."""

    def __init__(self, shards: Sequence[Shard], solver: Solver, rank: int) -> None:
        past = past_caches(sum(shard.rows[0].nbytes for shard in shards))
        parts = [
            (_AtOnce(shard, solver, rank, past), part)
            for shard, part in zip(shards, ranges(shards), strict=True)
        ]
        self.moves_replicas = solver.total_is_step
        """Whether what is gathered for a home moves the weights of this node, too."""
        # What has to travel goes first, and travels while the others are worked on.
        self._parts = sorted(parts, key=lambda part: part[0].is_home)

    def push(self, mine: torch.Tensor, into: torch.Tensor | None, rate: float) -> None:
        """Work on every block."""
        for shard, part in self._parts:
            shard.push(mine[part], None if into is None else into[part], rate)

    def pull(self, into: torch.Tensor) -> None:
        """Copy every block."""
        for shard, part in self._parts:
            shard.pull(into[part])

    def leave(self) -> Callable[[], bool]:
        """Do nothing: all is done at each push; but for relays."""
        return Outgoing(relays(shard.shard for shard, _ in self._parts)).has_come


class _AtOnce:
    """The same for one shard; the answer comes with the push, while a block is in the cache.

    On a relay the push is gathered for the home, and the answer is the replica.
    """

    def __init__(self, shard: Shard, solver: Solver, rank: int, past: bool) -> None:
        self.shard = shard
        self._solver = solver
        self.is_home = shard.layout.kind == HOME
        self._fused = fused_for(shard, solver)
        self._past_caches = past
        step = shard.layout.block_count
        self._sent, self._taken = Cuts(step), Cuts(step)
        room = torch.empty(step, dtype=shard.layout.dtypes[0], device="cpu")
        self._scratch = [room] * max(0, shard.layout.blocks - 1)
        self._scratch.append(room[: shard.layout.count - step * len(self._scratch)])
        # Far from where the others begin.
        self._first = shard.slot * _GOLDEN % 997 * shard.layout.blocks // 997
        shard.members.enter(shard.slot, 1 << rank % RANKS)

    def push(self, mine: torch.Tensor, into: torch.Tensor | None, rate: float) -> None:
        """Work on every block."""
        shard = self.shard
        shard.rate = rate
        if self._push_in_one(mine, into, rate):
            return
        sent = self._sent.of(mine)
        taken = None if into is None else self._taken.of(into)
        if self.is_home:
            shard.update(self._pushing(sent, taken, rate), self._first)
        else:
            shard.update(
                self._gathering(sent, taken, rate), self._first, changes=self._gather_changes
            )

    def _push_in_one(self, mine: torch.Tensor, into: torch.Tensor | None, rate: float) -> bool:
        """Do that in one pass; return whether it could be."""
        if self._fused is None:
            return False
        push = self._fused.pushing(mine, into, rate, past_caches=self._past_caches)
        if push is None:
            return False
        changes = Rows(copied=False) if self.is_home else self._gathered_in_one
        self.shard.update(self._counting(push), self._first, changes=changes)
        return True

    def _gather_changes(self, block: int) -> Rows:
        """Return the rows: what is in an empty total means nothing, and needs no copy."""
        empty = not self.shard.progress(block)[1] & COUNT
        return Rows(0 if self._solver.total_is_step else 1, 1 if empty else 2)

    def _gathered_in_one(self, block: int) -> Rows:
        return self._gather_changes(block)._replace(copied=False)

    def _pushing(self, sent: _Parts, taken: _Parts | None, rate: float) -> Operation:
        scratch, count = self._scratch, self.shard.count_push
        push, push_pull = self._solver.push, self._solver.push_pull

        def work(parts: Sequence[torch.Tensor], block: int) -> None:
            if taken is None:
                push(parts, sent[block], scratch[block], rate)
            else:
                push_pull(parts, sent[block], taken[block], scratch[block], rate)
            count(block)

        return work

    def _counting(self, push: Operation) -> Operation:
        count = self.shard.count_push

        def work(parts: Sequence[torch.Tensor], block: int) -> None:
            push(parts, block)
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
                gather(parts[0], parts[1], sent[block], scratch[block], rate)
            if taken is not None:
                answer(parts[:1], taken[block])
            count(block)

        return work

    def pull(self, into: torch.Tensor) -> None:
        """Copy every block."""
        self.shard.read(_copying(self._taken.of(into)), self._first)


class InRounds:
    """The weights take one step for all learners' pushes."""

    def __init__(
        self,
        shards: Sequence[Shard],
        solver: RoundSolver,
        rank: int,
        learners: int,
        patience: Patience,
    ) -> None:
        self._solver = solver
        self._turn = Turn(shards, rank, learners, patience)
        self._shards = shards
        self._parts = [
            (
                Rounds(shard, self._turn, fused_rounds_for(shard, solver)),
                Cuts(step),
                Cuts(step),
                part,
            )
            for shard, part in zip(shards, ranges(shards), strict=True)
            for step in [shard.layout.block_count]
        ]
        self._open = False

    def push(self, mine: torch.Tensor, into: torch.Tensor | None, rate: float) -> None:
        """Add to the sum; with `into` wait for the end of the round, and take the weights."""
        if self._open:
            self._finish(None)
        self._turn.catch_up()
        self._open = True
        for rounds, sent, _, part in self._parts:
            rounds.add(sent.of(mine[part]), rate, self._solver.step)
        if into is not None:
            self._finish(into)

    def pull(self, into: torch.Tensor) -> None:
        """Take the weights."""
        if self._open:
            self._finish(into)
            return
        for shard, (_, _, taken, part) in zip(self._shards, self._parts, strict=True):
            shard.read(_copying(taken.of(into[part])))

    def leave(self) -> Callable[[], bool]:
        """Leave the rounds, and end those that were waiting for this learner only.

        Those who have added to them may have left before, without the end of the round. On a relay
        it comes from the home.
        """
        for shard in self._shards:
            shard.members.pause(shard.slot)
            shard.members.strike_dead()
            for block, (rounds, added) in enumerate(shard.all_progress()):
                if shard.layout.kind == HOME and added and not missing(shard, rounds, added):
                    settle(shard, block, rounds, self._solver.step)
        sums = [shard.all_added() for shard in relays(self._shards)]
        return lambda: not any((added & self._turn.mask).any() for added in sums)

    def _finish(self, into: torch.Tensor | None) -> None:
        """Wait for the end of the round in all shards."""
        for rounds, _, taken, part in self._parts:
            blocks = None if into is None else taken.of(into[part])
            rounds.finish(self._solver.step, partial(_take, blocks))
        self._open = False
        self._turn.number += 1


def copying(shard: Shard, into: torch.Tensor, row: int = 0) -> Operation:
    """Return what copies a row of each block that is read."""
    return _copying(torch.split(into, shard.layout.block_count), row)


def _copying(taken: _Parts, row: int = 0) -> Operation:
    def copy(parts: Sequence[torch.Tensor], block: int) -> None:
        taken[block].copy_(parts[row])

    return copy


def _take(blocks: _Parts | None, weights: torch.Tensor, block: int) -> None:
    if blocks is not None:
        blocks[block].copy_(weights)
