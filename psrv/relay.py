"""A shard whose home is another node: what this node's learners push goes there, block by block.

`AtOnceRelay` takes the total of a block as soon as something is in it and nothing of the block is
on its way; `RoundsRelay` sends the sum of a block once all living learners of the node have added.
Neither knows connections: psrv.link asks both for frames to send, and gives them the answers.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import count

import numpy as np
import torch

from psrv.pushes import copying
from psrv.rounds import missing
from psrv.rules import Solver
from psrv.shard import ThreadedShard
from psrv.shard_file import COUNT, COUNT_BITS
from psrv.transport.base import Frame, Kind
from psrv.window import Window

Sending = tuple[Frame, memoryview]
"""A frame and its payload."""
_NUMBERS = 1 << 35
"""A home keeps a number with its node's, and both have to fit a word."""
_REPLICA, _NO_ROW = (0, 1), (0, 0)
"""What an operation changes; see psrv.shard."""


class Relay(ABC):
    """What psrv.link asks of either kind."""

    def __init__(self, number: int, shard: ThreadedShard) -> None:
        self.number = number
        """The shard's."""
        self.shard = shard
        self._added = shard.all_added()
        step = shard.layout.block_count
        self._lengths = [len(part) for part in torch.split(shard.rows[0], step)]

    def length(self, block: int) -> int:
        """Return the number of elements of a block."""
        return self._lengths[block]

    @abstractmethod
    def ready(self, blocks: range) -> list[int]:
        """Return those blocks of which there is something to send."""

    @abstractmethod
    def take(self, block: int) -> Sending | None:
        """Return what is to be sent of a block; None: nothing, or there is no room now."""

    @abstractmethod
    def on_its_way(self, blocks: Iterable[int]) -> list[Sending]:
        """Return what was sent and not answered; another connection is to send it again."""

    @abstractmethod
    def give(self, frame: Frame, weights: torch.Tensor) -> None:
        """Take the home's answer to a total."""

    def pull(self, block: int) -> Frame:
        """Return the question for newer weights."""
        had, _ = self.shard.progress(block)
        return Frame(Kind.PULL, self.number, block, had)

    @abstractmethod
    def settled(self, into: torch.Tensor) -> None:
        """Copy the weights, without what was gathered here and is still to go to a home.

        Args:
            into: Shape (count,), the shard's.
        """

    @abstractmethod
    def pulled(self, frame: Frame, weights: torch.Tensor) -> None:
        """Take the answer to it; of no elements, if there are no newer ones."""


class AtOnceRelay(Relay):
    """Of a solver that takes pushes in as they come.

    A total is kept in the window from when it is taken out of the shard, as one operation with
    that, until the home has answered.
    """

    def __init__(self, number: int, shard: ThreadedShard, solver: Solver, window: Window) -> None:
        super().__init__(number, shard)
        self._solver = solver
        self._window = window
        # Never one that this node has had before: a server before this one has drawn others.
        self._numbers = count(1 + secrets.randbelow(_NUMBERS))

    def exchanges(self) -> set[int]:
        """Return the numbers of all exchanges that are on their way."""
        return {added >> COUNT_BITS for _, added in self.shard.all_progress()} - {0}

    def ready(self, blocks: range) -> list[int]:
        """Return the blocks with pushes in their total, and nothing on its way."""
        added = self._added[blocks.start : blocks.stop : blocks.step]
        found = np.flatnonzero((added > 0) & (added <= COUNT)).tolist()
        return [blocks[n] for n in found]

    def take(self, block: int) -> Sending | None:
        """Take the total out of the shard."""
        place = self._window.take(timeout_s=0.5)
        if place is None:
            return None
        shard, frame = self.shard, None

        def work(parts: Sequence[torch.Tensor], block: int) -> None:
            nonlocal frame
            had, added = shard.progress(block)
            if 0 < added <= COUNT:
                number = next(self._numbers)
                frame = Frame(Kind.TOTAL, self.number, block, number, 0, added, shard.rate)
                self._window.keep(place, frame, parts[1])
                shard.set_progress(block, had, number << COUNT_BITS)

        shard.update_block(block, work, changes=_NO_ROW)
        if frame is not None:
            return frame, place.payload
        self._window.give_back(place)
        return None

    def on_its_way(self, blocks: Iterable[int]) -> list[Sending]:
        """Find the totals in the window."""
        progress = self.shard.all_progress()
        numbers = [progress[block][1] >> COUNT_BITS for block in blocks]
        places = [self._window.find(number) for number in numbers if number]
        return [(place.frame, place.payload) for place in places]

    def give(self, frame: Frame, weights: torch.Tensor) -> None:
        """Put the weights into the replica; the window's place is free again."""
        place = None

        def work(parts: Sequence[torch.Tensor], block: int) -> None:
            nonlocal place
            _, added = self.shard.progress(block)
            if number := added >> COUNT_BITS:
                self._replace(parts, weights, added)
                self.shard.set_progress(block, frame.number, added & COUNT)
                place = self._window.find(number)

        self.shard.update_block(frame.block, work, changes=_REPLICA)
        if place is not None:
            self._window.give_back(place)

    def _replace(self, parts: Sequence[torch.Tensor], weights: torch.Tensor, added: int) -> None:
        parts[0].copy_(weights)
        if self._solver.total_is_step and added & COUNT:
            parts[0].add_(parts[1])  # what the home has not had yet

    def settled(self, into: torch.Tensor) -> None:
        """Copy the replica; less the total, where `gather` has added that to it, too."""
        taken = torch.split(into, self.shard.layout.block_count)

        def copy(parts: Sequence[torch.Tensor], block: int) -> None:
            taken[block].copy_(parts[0])
            if self._solver.total_is_step:
                added = self.shard.progress(block)[1]
                if added & COUNT:
                    taken[block].sub_(parts[1])
                if number := added >> COUNT_BITS:
                    taken[block].sub_(self._window.find(number).total)

        self.shard.read(copy)

    def pulled(self, frame: Frame, weights: torch.Tensor) -> None:
        """Put them into the replica, unless a total is on its way: its answer is newer."""

        def work(parts: Sequence[torch.Tensor], block: int) -> None:
            _, added = self.shard.progress(block)
            if added <= COUNT:
                self._replace(parts, weights, added)
                self.shard.set_progress(block, frame.number, added)

        if len(weights):
            self.shard.update_block(frame.block, work, changes=_REPLICA)


class RoundsRelay(Relay):
    """Of a solver in rounds: a sum stays in the shard until the answer ends its round."""

    def __init__(self, number: int, shard: ThreadedShard) -> None:
        super().__init__(number, shard)
        sums = torch.split(shard.rows[-1], shard.layout.block_count)
        self._sums = [part.numpy().data.cast("B") for part in sums]
        self._sent: dict[int, int] = {}
        """Of which block the sum of which round is on its way."""

    def ready(self, blocks: range) -> list[int]:
        """Return the blocks that all living learners have added to and that were not sent."""
        shard = self.shard
        found = np.flatnonzero(self._added[blocks.start : blocks.stop : blocks.step]).tolist()
        ready = []
        for block in (blocks[n] for n in found):
            rounds, added = shard.progress(block)
            if self._sent.get(block) != rounds and not missing(shard, rounds, added):
                ready.append(block)
        return ready

    def take(self, block: int) -> Sending | None:
        """Send it from where it lies: nobody adds to it before the answer.

        Under the lock: what a learner that was killed had begun to add is undone there.
        """
        frame = None

        def look(_: Sequence[torch.Tensor], block: int) -> None:
            nonlocal frame
            rounds, added = self.shard.progress(block)
            if added and not missing(self.shard, rounds, added):
                self._sent[block] = rounds
                frame = self._frame(block, rounds, added)

        self.shard.read_block(block, look)
        return None if frame is None else (frame, self._sums[block])

    def _frame(self, block: int, rounds: int, added: int) -> Frame:
        pushes, rate = added.bit_count(), self.shard.rate
        return Frame(Kind.TOTAL, self.number, block, rounds, added, pushes, rate)

    def on_its_way(self, blocks: Iterable[int]) -> list[Sending]:
        """Return none: they are `ready` again."""
        for block in blocks:
            self._sent.pop(block, None)
        return []

    def give(self, frame: Frame, weights: torch.Tensor) -> None:
        """End the round, if it has not ended."""

        def work(parts: Sequence[torch.Tensor], block: int) -> None:
            rounds, _ = self.shard.progress(block)
            if frame.number > rounds:
                parts[0].copy_(weights)
                self.shard.set_progress(block, frame.number, 0)

        if len(weights):
            self.shard.update_block(frame.block, work, changes=_REPLICA)

    def settled(self, into: torch.Tensor) -> None:
        """Copy the replica."""
        self.shard.read(copying(self.shard, into))

    def pulled(self, frame: Frame, weights: torch.Tensor) -> None:
        """Go on to the home's round: this node's learners take no part in it."""
        self.give(frame, weights)
