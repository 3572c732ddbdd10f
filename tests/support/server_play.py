"""Plays the servers of two nodes in one process, without a network. Not a test by itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from psrv.push.rounds import RoundEnd, missing
from psrv.server import primary_blocks
from psrv.shard.format import ShardLayout
from psrv.shard.shard import Rows, Shard, ThreadedShard
from psrv.solvers.solver import RoundSolver, Solver
from psrv.transport.base import Frame, Kind

LOOK_S = 0.02


class Pair:
    """A shard's primary on one node, and its replica on `node`, with the ranks of `mask`."""

    def __init__(
        self,
        paths: tuple[Path, Path],
        layouts: Sequence[ShardLayout],
        solver: Solver | RoundSolver,
        node: int,
        mask: int,
    ) -> None:
        self.primary = ThreadedShard(paths[0], layouts[0], 1)
        self.replica = ThreadedShard(paths[1], layouts[1], 1)
        self._solver = solver
        self._mask = mask
        self._number = 0
        slot = self.primary.members.proxy(node)
        assert slot is not None
        self._slot = slot
        self._buffer = torch.empty(layouts[0].block_count)
        self._answer = torch.empty(layouts[0].block_count)
        self.run = self._rounds if isinstance(solver, RoundSolver) else self._at_once

    def look(self) -> None:
        """See who is there."""
        for shard in (self.primary, self.replica):
            shard.members.remove_dead()
        here, known = self.replica.members.ranks(), self.primary.members.ranks() & self._mask
        all_here = here.bit_count() >= self.replica.expected
        begun = any(self.replica.progress(0)) or any(self.primary.progress(0))
        if here and not known and (all_here or begun):
            self.primary.members.enter(
                self._slot, self._mask, primary_blocks.next_round(self.primary)
            )
        elif known and not here:
            self.primary.members.pause(self._slot)
        self.primary.members.set_clock(self._slot, self.replica.members.slowest(proxies=False))
        self.replica.elsewhere = self.primary.members.slowest(excluding=self._slot)

    def _cut(self, buffer: torch.Tensor, block: int) -> torch.Tensor:
        step = self.primary.layout.block_count
        return buffer[: min(step, self.primary.layout.count - block * step)]

    def _rounds(self) -> bool:
        assert isinstance(self._solver, RoundSolver)
        step, did, replica = self._solver.step, False, self.replica
        for block, (rounds, added) in enumerate(replica.all_progress()):
            buffer = self._cut(self._buffer, block)
            if added and not missing(replica, rounds, added):
                replica.read_block(block, partial(_copy_sum, buffer))
                frame = Frame(Kind.TOTAL, number=rounds, mask=added, rate=replica.round_rate(block))
                primary_blocks.add_sum(self.primary, block, frame, buffer, RoundEnd(step))
            if primary_blocks.has_ended(self.primary, block, rounds + 1, step):
                found = primary_blocks.copy_weights(self.primary, range(block, block + 1), [buffer])
                self._end_round(block, found, buffer)
                did = True
        return did

    def _end_round(self, block: int, rounds: int, weights: torch.Tensor) -> None:
        def end(parts: Sequence[torch.Tensor], block: int) -> None:
            parts[0].copy_(weights)
            self.replica.set_progress(block, rounds, 0)

        self.replica.update_block(block, end)

    def _at_once(self) -> bool:
        solver, any_pushes = self._solver, False
        assert not isinstance(solver, RoundSolver)
        for block in range(self.primary.layout.blocks):
            buffer, answer = self._cut(self._buffer, block), self._cut(self._answer, block)
            pushes, self._number = self._take(block, buffer), self._number + 1
            rate = self.replica.rate
            run = range(block, block + 1)
            if not pushes:
                seen = primary_blocks.copy_weights(self.primary, run, [answer])
            else:
                exchange = primary_blocks.TotalsExchange(
                    self._number, pushes, rate, lambda *_: True
                )
                seen = primary_blocks.merge(self.primary, run, solver, exchange, [buffer], [answer])
            if seen != self.replica.progress(block)[0]:
                self._answer_to(block, answer, seen, solver.total_is_step)
            any_pushes |= pushes > 0
        return any_pushes

    def _take(self, block: int, into: torch.Tensor) -> int:
        pushes = 0

        def take(parts: Sequence[torch.Tensor], block: int) -> None:
            nonlocal pushes
            had, pushes = self.replica.progress(block)
            into.copy_(parts[1])
            parts[1].zero_()
            self.replica.set_progress(block, had, 0)

        self.replica.update_block(block, take, changes=Rows(1, 2))
        return pushes

    def _answer_to(self, block: int, weights: torch.Tensor, had: int, add: bool) -> None:
        def put(parts: Sequence[torch.Tensor], block: int) -> None:
            parts[0].copy_(weights)
            if add:
                parts[0].add_(parts[1])
            self.replica.set_progress(block, had, self.replica.progress(block)[1])

        self.replica.update_block(block, put)


def _copy_sum(into: torch.Tensor, parts: Sequence[torch.Tensor], block: int) -> None:
    into.copy_(parts[-1])


def serve(pairs: Sequence[Pair], until: Callable[[], bool] = lambda: False) -> None:
    """Serve until told to end, and nothing is left to do."""
    look_at = 0.0
    while True:
        ending = until()
        if time.monotonic() > look_at:
            for pair in pairs:
                pair.look()
            look_at = time.monotonic() + LOOK_S
        if not any([pair.run() for pair in pairs]):
            if ending:
                return
            time.sleep(1e-4)


def whole(shard: Shard) -> bool:
    """Return whether each block's weights are one number."""
    step = shard.layout.block_count
    return all(part.eq(part[0]).all() for part in shard.rows[0].split(step))
