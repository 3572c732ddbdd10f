"""A shard whose primary is another node: forwards the pushes of this node's learners, run by run.

A run is some neighbouring blocks of a group (see psrv.shard.shard), which travel in one frame.
`AtOnceForwarder` takes the totals of blocks as soon as they hold a push and nothing of these blocks
is unanswered; `RoundsForwarder` sends the sums of blocks once all living learners of the node have
added. Neither knows connections: psrv.server.link asks both for frames to send, and gives them the
answers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from psrv.push.push import copying
from psrv.push.rounds import missing
from psrv.server.outbox import Outbox, OutboxEntry
from psrv.shard.format import COUNT, COUNT_BITS
from psrv.shard.shard import GROUP, Rows, ThreadedShard
from psrv.solvers.solver import Solver
from psrv.transport.base import ANY, Frame, Kind

Sending = tuple[Frame, memoryview]
"""A frame and its payload."""
_REPLICA, _NO_ROW = Rows(0, 1), Rows(0, 0)
"""The rows that an operation changes; see psrv.shard.shard."""


class Forwarder(ABC):
    """The interface that psrv.server.link uses."""

    def __init__(self, number: int, shard: ThreadedShard) -> None:
        self.number = number
        """The shard's number."""
        self.shard = shard
        self._added = shard.all_added()
        self._step = shard.layout.block_count
        self.announced = 0
        """The refresh that was wanted when the primary last heard which learners live here."""
        self._from_primary = np.zeros(shard.layout.blocks, dtype=bool)
        """For each block of the replica, whether it came from the current primary."""

    @property
    def wanted(self) -> int:
        """The number of the newest refresh that a learner wants."""
        return self.shard.refresh_wanted

    @property
    def is_behind(self) -> bool:
        """Return whether learners of this node wait for progress of others at the primary."""
        return False

    def distrust_replica(self) -> None:
        """Treat the whole replica as stale: a new primary may lack pushes the lost one took."""
        self._from_primary[:] = False

    @abstractmethod
    def ready(self) -> list[int]:
        """Return the groups that have something to send."""

    @abstractmethod
    def take(self, group: int) -> Sending | None:
        """Return what to send of a group; None: nothing, or the outbox is full."""

    def gathered(self, group: int) -> set[int]:
        """Return the blocks of a group with pushes that are still to be sent.

        None in rounds: a learner that pushes waits for the answer, or for learners that have not
        pushed.
        """
        del group
        return set()

    def waits(self, group: int) -> bool:
        """Return whether what a group has gathered can't be sent before an answer comes."""
        del group
        return False

    def run_of(self, frame: Frame, payload: memoryview) -> range:
        """Return the blocks of a frame that `take` returned."""
        size = self.shard.rows[-1].element_size() * self._step
        return range(frame.block, frame.block - (-payload.nbytes // size))

    @abstractmethod
    def unanswered(self) -> list[Sending]:
        """Return what was sent and not answered, to be sent again over a new connection."""

    @abstractmethod
    def give(self, frame: Frame, weights: torch.Tensor) -> None:
        """Apply the primary's answer to totals: the weights of the same run."""

    def pull(self, block: int) -> Frame:
        """Return the frame that asks for newer weights."""
        had = self.shard.progress(block)[0] if self._from_primary[block] else ANY
        return Frame(Kind.PULL, self.number, block, had)

    @abstractmethod
    def settled(self, into: torch.Tensor) -> None:
        """Copy the weights without pushes that were gathered here and have no answer yet.

        Args:
            into: Shape (count,), the shard's.
        """

    @abstractmethod
    def pulled(self, frame: Frame, weights: torch.Tensor) -> None:
        """Apply the answer to a pull that has newer weights."""

    def _run(self, frame: Frame, weights: torch.Tensor) -> tuple[range, Sequence[torch.Tensor]]:
        """Return the blocks of an answer, and the weights of each."""
        parts = torch.split(weights, self._step)
        return range(frame.block, frame.block + len(parts)), parts

    @staticmethod
    def _groups(which: np.ndarray[Any, np.dtype[np.bool_]]) -> list[int]:
        """Return the groups of the blocks that are set in a mask."""
        found = np.flatnonzero(which) // GROUP
        return list(dict.fromkeys(found.tolist()))


class AtOnceForwarder(Forwarder):
    """Forwards pushes of a solver that applies each push as it comes.

    A total moves from the shard to the outbox in one operation, and stays there until the primary
    has answered. All blocks of a run have the same number of pushes: a group in which a killed
    learner has pushed to some blocks only is sent as several runs.
    """

    def __init__(self, number: int, shard: ThreadedShard, solver: Solver, outbox: Outbox) -> None:
        super().__init__(number, shard)
        self._solver = solver
        self._outbox = outbox

    def exchanges(self) -> set[int]:
        """Return the numbers of all unanswered exchanges."""
        return {added >> COUNT_BITS for _, added in self.shard.all_progress()} - {0}

    def ready(self) -> list[int]:
        """Return the groups with a block that has gathered pushes and nothing unanswered."""
        return self._groups((self._added > 0) & (self._added <= COUNT))

    def gathered(self, group: int) -> set[int]:
        """Return the blocks that have gathered pushes."""
        return {block for block in self.shard.groups[group] if self._added[block] & COUNT}

    def waits(self, group: int) -> bool:
        """Return whether all blocks with gathered pushes have an unanswered total."""
        added = self._added[self.shard.groups[group]]
        return not ((added > 0) & (added <= COUNT)).any() and bool((added & COUNT).any())

    def take(self, group: int) -> Sending | None:
        """Move the totals of a run from the shard to the outbox."""
        entry = self._outbox.take(timeout_s=0.5)
        if entry is None:
            return None
        shard, outbox, frame, ended = self.shard, self._outbox, Frame(Kind.TOTAL), False

        def work(parts: Sequence[torch.Tensor], block: int) -> None:
            nonlocal frame, ended
            had, added = shard.progress(block)
            if ended or not 0 < added <= COUNT or added != (frame.pushes or added):
                ended = frame.pushes > 0
                return
            if not frame.pushes:
                number = outbox.next_number()
                frame = Frame(Kind.TOTAL, self.number, block, number, 0, added, shard.rate)
                outbox.begin(entry, frame)
            entry.add(parts[1])
            shard.set_progress(block, had, frame.number << COUNT_BITS)

        shard.update_run(shard.groups[group], work, changes=_NO_ROW)
        if frame.pushes:
            return frame, entry.payload()
        self._outbox.release(entry)
        return None

    def unanswered(self) -> list[Sending]:
        """Find the totals of unanswered blocks in the outbox."""
        runs: dict[int, list[int]] = {}
        for block, (_, added) in enumerate(self.shard.all_progress()):
            if number := added >> COUNT_BITS:
                runs.setdefault(number, []).append(block)
        return [self._again(self._outbox.find(number), blocks) for number, blocks in runs.items()]

    def _again(self, entry: OutboxEntry, blocks: Sequence[int]) -> Sending:
        """Return an entry's totals of neighbouring blocks, which may be fewer than it holds.

        A server that was killed may have been adding blocks, or applying their answer.
        """
        frame, step = entry.frame, self._step
        start = (blocks[0] - frame.block) * step
        stop = min((blocks[-1] + 1) * step, self.shard.layout.count) - frame.block * step
        return frame._replace(block=blocks[0]), entry.payload(start, stop)

    def give(self, frame: Frame, weights: torch.Tensor) -> None:
        """Copy the weights into the replica, and free the outbox entry."""
        run, new = self._run(frame, weights)
        number = 0

        def work(parts: Sequence[torch.Tensor], block: int) -> None:
            nonlocal number
            _, added = self.shard.progress(block)
            if added >> COUNT_BITS:
                number = added >> COUNT_BITS
                self._replace(parts, new[block - run.start], added)
                self.shard.set_progress(block, frame.number, added & COUNT)

        self.shard.update_run(run, work, changes=_REPLICA)
        self._from_primary[run] = True
        if number:
            self._outbox.release(self._outbox.find(number))

    def _replace(self, parts: Sequence[torch.Tensor], weights: torch.Tensor, added: int) -> None:
        parts[0].copy_(weights)
        if self._solver.total_is_step and added & COUNT:
            parts[0].add_(parts[1])  # what the primary lacks

    def settled(self, into: torch.Tensor) -> None:
        """Copy the replica, without the totals that `gather` has added to it."""
        taken = torch.split(into, self._step)

        def copy(parts: Sequence[torch.Tensor], block: int) -> None:
            taken[block].copy_(parts[0])
            if self._solver.total_is_step:
                added = self.shard.progress(block)[1]
                if added & COUNT:
                    taken[block].sub_(parts[1])
                if number := added >> COUNT_BITS:
                    entry = self._outbox.find(number)
                    start = (block - entry.frame.block) * self._step
                    taken[block].sub_(entry.total[start : start + len(parts[0])])

        self.shard.read(copy)

    def pulled(self, frame: Frame, weights: torch.Tensor) -> None:
        """Copy pulled weights into the replica, except where a total is unanswered.

        The answer to that total will be newer.
        """

        def work(parts: Sequence[torch.Tensor], block: int) -> None:
            _, added = self.shard.progress(block)
            if added <= COUNT:
                self._replace(parts, weights, added)
                self.shard.set_progress(block, frame.number, added)
                self._from_primary[block] = True

        self.shard.update_block(frame.block, work, changes=_REPLICA)


class RoundsForwarder(Forwarder):
    """Forwards sums of a solver in rounds; a sum stays in the shard until its round has ended."""

    def __init__(self, number: int, shard: ThreadedShard) -> None:
        super().__init__(number, shard)
        self._sums = shard.rows[-1].numpy().data.cast("B")
        self._rounds = shard.all_rounds()
        self._sent = np.full(shard.layout.blocks, -1)
        """For each block, the round whose sum is unanswered; -1 if there is none."""

    @property
    def wanted(self) -> int:
        """The newest refresh wanted by learners that the primary knows: it covers their rounds."""
        return min(self.announced, self.shard.refresh_wanted)

    @property
    def is_behind(self) -> bool:
        """Return whether all living learners here take part in later rounds only.

        Then nothing is sent whose answer would bring the weights of the rounds that end meanwhile.
        """
        members = self.shard.members.all()
        if not members or not len(self._rounds):
            return False
        return min(member.first_round for member in members) > int(self._rounds.min())

    @property
    def behind(self) -> int:
        """Return the number of rounds that the replica's most advanced block has ended."""
        return int(self._rounds.max(initial=0))

    def whole(self) -> tuple[int, int]:
        """Return which ranks have added to all blocks of the oldest open round, and that round.

        They may have left since, and still take part in it. A learner that was killed halfway is
        missing from some blocks; nobody may wait for it.
        """
        added, rounds = self._added.copy(), self._rounds.copy()  # `give` changes the latter first
        if not len(rounds):
            return 0, 0
        oldest = rounds.min()
        return int(np.bitwise_and.reduce(added[rounds == oldest])), int(oldest)

    def ready(self) -> list[int]:
        """Return the groups with unsent blocks to which all living learners have added.

        This is an unlocked look. It runs every millisecond while learners wait for one another, so
        it looks at all blocks together.
        """
        rounds, added = self._rounds, self._added
        found = (added != 0) & (self._sent != rounds)
        for member in self.shard.members.all():
            if not found.any():
                break
            found &= (rounds < member.first_round) | (added & member.mask != 0)
        return self._groups(found)

    def _is_ready(self, block: int, rounds: int, added: int) -> bool:
        return bool(
            added and self._sent[block] != rounds and not missing(self.shard, rounds, added)
        )

    def take(self, group: int) -> Sending | None:
        """Return sums of one round, set of ranks and rate, in place: nobody adds to them now.

        The lock makes sure that what a killed learner had begun to add is undone.
        """
        run: list[int] = []
        of = 0, 0, 0.0

        def look(_: Sequence[torch.Tensor], block: int) -> None:
            nonlocal of
            rounds, added = self.shard.progress(block)
            what = rounds, added, self.shard.round_rate(block)
            if run and (what != of or block != run[-1] + 1):
                return
            if self._is_ready(block, rounds, added):
                of = what
                run.append(block)

        self.shard.read_run(self.shard.groups[group], look)
        if not run:
            return None
        rounds, added, rate = of
        self._sent[run] = rounds
        size = self.shard.rows[-1].element_size() * self._step
        payload = self._sums[run[0] * size : (run[-1] + 1) * size]
        return Frame(
            Kind.TOTAL, self.number, run[0], rounds, added, added.bit_count(), rate
        ), payload

    def unanswered(self) -> list[Sending]:
        """Return nothing: the sums are `ready` again."""
        self._sent[:] = -1
        return []

    def give(self, frame: Frame, weights: torch.Tensor) -> None:
        """End the round of the blocks in which it has not ended yet.

        Blocks in which it has ended are overwritten with the primary's weights: a lost primary may
        have answered differently.
        """
        run, new = self._run(frame, weights)

        def work(parts: Sequence[torch.Tensor], block: int) -> None:
            rounds, added = self.shard.progress(block)
            if frame.number >= rounds:
                parts[0].copy_(new[block - run.start])
                self.shard.set_progress(block, frame.number, added if frame.number == rounds else 0)

        self.shard.update_run(run, work, changes=_REPLICA)
        self._from_primary[run] = True

    def settled(self, into: torch.Tensor) -> None:
        """Copy the replica."""
        self.shard.read(copying(torch.split(into, self._step)))

    def pulled(self, frame: Frame, weights: torch.Tensor) -> None:
        """Go on to the primary's round, in which this node's learners take no part."""
        self.give(frame, weights)


def local_clock(forwarder: Forwarder) -> tuple[int, int, int]:
    """Return the mask of this node's members, and their clock.

    Returns:
        Mask, clock and ended rounds. Not in rounds: the smallest clock, and 0. In rounds: the first
        round that one of the members takes part in, and how many rounds the replica has ended.
    """
    members = forwarder.shard.members
    everyone = members.all()
    mask = 0
    for member in everyone:
        mask |= member.mask
    if not isinstance(forwarder, RoundsForwarder):
        return mask, members.slowest(proxies=False), 0
    firsts = [member.first_round for member in everyone]
    added, oldest = forwarder.whole()  # after the members: a learner adds before it leaves
    if added:
        firsts.append(oldest)
    return mask | added, min(firsts, default=0), forwarder.behind
