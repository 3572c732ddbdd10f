"""A shard whose home is another node: what this node's learners push goes there, run by run.

A run is some neighbouring blocks of a group (see psrv.shard.shard), which travel in one frame.
`AtOnceRelay` takes the totals of blocks as soon as something is in them and nothing of theirs is on
its way; `RoundsRelay` sends the sums of blocks once all living learners of the node have added.
Neither knows connections: psrv.server.link asks both for frames to send, and gives them the
answers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from psrv.push.push import copying
from psrv.push.rounds import missing
from psrv.server.outbox import Place, Window
from psrv.shard.format import COUNT, COUNT_BITS
from psrv.shard.shard import GROUP, Rows, ThreadedShard
from psrv.solvers.solver import Solver
from psrv.transport.base import ANY, Frame, Kind

Sending = tuple[Frame, memoryview]
"""A frame and its payload."""
_REPLICA, _NO_ROW = Rows(0, 1), Rows(0, 0)
"""What an operation changes; see psrv.shard.shard."""


class Relay(ABC):
    """What psrv.server.link asks of either kind."""

    def __init__(self, number: int, shard: ThreadedShard) -> None:
        self.number = number
        """The shard's."""
        self.shard = shard
        self._added = shard.all_added()
        self._step = shard.layout.block_count
        self.announced = 0
        """Which refresh was wanted when the home was last told who lives here."""
        self._is_of_home = np.zeros(shard.layout.blocks, dtype=bool)
        """Of each block of the replica, whether it came from the home of now."""

    @property
    def wanted(self) -> int:
        """Which refresh is wanted, counted up."""
        return self.shard.refresh_wanted

    @property
    def is_behind(self) -> bool:
        """Return whether learners of this node wait for what others do at the home."""
        return False

    def meet(self) -> None:
        """Begin with a home, which may be another one.

        What it has counts as many pushes as the replica, perhaps, and lacks some of them: a home
        that was lost had told them to this node only.
        """
        self._is_of_home[:] = False

    @abstractmethod
    def ready(self) -> list[int]:
        """Return those groups of which there is something to send."""

    @abstractmethod
    def take(self, group: int) -> Sending | None:
        """Return what is to be sent of a group; None: nothing, or there is no room now."""

    def gathered(self, group: int) -> set[int]:
        """Return the blocks of a group with pushes that are still to be sent.

        In rounds none: who pushes waits for the answer, or for those who have not pushed.
        """
        del group
        return set()

    def waits(self, group: int) -> bool:
        """Return whether what has gathered in a group can't be sent before an answer comes."""
        del group
        return False

    def run_of(self, frame: Frame, payload: memoryview) -> range:
        """Return the blocks of a frame of `take`."""
        size = self.shard.rows[-1].element_size() * self._step
        return range(frame.block, frame.block - (-payload.nbytes // size))

    @abstractmethod
    def on_its_way(self, groups: Iterable[int]) -> list[Sending]:
        """Return what was sent and not answered; another connection is to send it again."""

    @abstractmethod
    def give(self, frame: Frame, weights: torch.Tensor) -> None:
        """Take the home's answer to totals: the weights of the same run."""

    def pull(self, block: int) -> Frame:
        """Return the question for newer weights."""
        had = self.shard.progress(block)[0] if self._is_of_home[block] else ANY
        return Frame(Kind.PULL, self.number, block, had)

    @abstractmethod
    def settled(self, into: torch.Tensor) -> None:
        """Copy the weights, without what was gathered here and is still to go to a home.

        Args:
            into: Shape (count,), the shard's.
        """

    @abstractmethod
    def pulled(self, frame: Frame, weights: torch.Tensor) -> None:
        """Take the answer to it, if there are newer ones."""

    def _run(self, frame: Frame, weights: torch.Tensor) -> tuple[range, Sequence[torch.Tensor]]:
        """Return the blocks of an answer, and the weights of each."""
        parts = torch.split(weights, self._step)
        return range(frame.block, frame.block + len(parts)), parts

    @staticmethod
    def _groups(which: np.ndarray[Any, np.dtype[np.bool_]]) -> list[int]:
        """Return the groups that have such blocks."""
        found = np.flatnonzero(which) // GROUP
        return list(dict.fromkeys(found.tolist()))


class AtOnceRelay(Relay):
    """Of a solver that takes pushes in as they come.

    A total is kept in the window from when it is taken out of the shard, as one operation with
    that, until the home has answered. A run has the same number of pushes in all of its blocks: a
    group of which a killed learner has pushed to some blocks only goes in several.
    """

    def __init__(self, number: int, shard: ThreadedShard, solver: Solver, window: Window) -> None:
        super().__init__(number, shard)
        self._solver = solver
        self._window = window

    def exchanges(self) -> set[int]:
        """Return the numbers of all exchanges that are on their way."""
        return {added >> COUNT_BITS for _, added in self.shard.all_progress()} - {0}

    def ready(self) -> list[int]:
        """Return the groups with pushes in the total of a block, and nothing of it on its way."""
        return self._groups((self._added > 0) & (self._added <= COUNT))

    def gathered(self, group: int) -> set[int]:
        """Return the blocks with pushes in their total."""
        return {block for block in self.shard.groups[group] if self._added[block] & COUNT}

    def waits(self, group: int) -> bool:
        """Return whether all blocks with pushes have a total on its way."""
        added = self._added[self.shard.groups[group]]
        return not ((added > 0) & (added <= COUNT)).any() and bool((added & COUNT).any())

    def take(self, group: int) -> Sending | None:
        """Take the totals of a run out of the shard."""
        place = self._window.take(timeout_s=0.5)
        if place is None:
            return None
        shard, window, frame, ended = self.shard, self._window, Frame(Kind.TOTAL), False

        def work(parts: Sequence[torch.Tensor], block: int) -> None:
            nonlocal frame, ended
            had, added = shard.progress(block)
            if ended or not 0 < added <= COUNT or added != (frame.pushes or added):
                ended = frame.pushes > 0
                return
            if not frame.pushes:
                number = window.next_number()
                frame = Frame(Kind.TOTAL, self.number, block, number, 0, added, shard.rate)
                window.begin(place, frame)
            place.add(parts[1])
            shard.set_progress(block, had, frame.number << COUNT_BITS)

        shard.update_run(shard.groups[group], work, changes=_NO_ROW)
        if frame.pushes:
            return frame, place.payload()
        self._window.give_back(place)
        return None

    def on_its_way(self, groups: Iterable[int]) -> list[Sending]:
        """Find the totals in the window: of the blocks whose answers have not come."""
        runs: dict[int, list[int]] = {}
        for group in groups:
            for block in self.shard.groups[group]:
                if number := self.shard.progress(block)[1] >> COUNT_BITS:
                    runs.setdefault(number, []).append(block)
        return [self._again(self._window.find(number), blocks) for number, blocks in runs.items()]

    def _again(self, place: Place, blocks: Sequence[int]) -> Sending:
        """Return what a place has of neighbouring blocks, which may be fewer than it has.

        A server that is killed may have begun to take more, or to take in their answer.
        """
        frame, step = place.frame, self._step
        start = (blocks[0] - frame.block) * step
        stop = min((blocks[-1] + 1) * step, self.shard.layout.count) - frame.block * step
        return frame._replace(block=blocks[0]), place.payload(start, stop)

    def give(self, frame: Frame, weights: torch.Tensor) -> None:
        """Put the weights into the replica; the window's place is free again."""
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
        self._is_of_home[run] = True
        if number:
            self._window.give_back(self._window.find(number))

    def _replace(self, parts: Sequence[torch.Tensor], weights: torch.Tensor, added: int) -> None:
        parts[0].copy_(weights)
        if self._solver.total_is_step and added & COUNT:
            parts[0].add_(parts[1])  # what the home has not had yet

    def settled(self, into: torch.Tensor) -> None:
        """Copy the replica; less the total, where `gather` has added that to it, too."""
        taken = torch.split(into, self._step)

        def copy(parts: Sequence[torch.Tensor], block: int) -> None:
            taken[block].copy_(parts[0])
            if self._solver.total_is_step:
                added = self.shard.progress(block)[1]
                if added & COUNT:
                    taken[block].sub_(parts[1])
                if number := added >> COUNT_BITS:
                    place = self._window.find(number)
                    start = (block - place.frame.block) * self._step
                    taken[block].sub_(place.total[start : start + len(parts[0])])

        self.shard.read(copy)

    def pulled(self, frame: Frame, weights: torch.Tensor) -> None:
        """Put them into the replica, unless a total is on its way: its answer is newer."""

        def work(parts: Sequence[torch.Tensor], block: int) -> None:
            _, added = self.shard.progress(block)
            if added <= COUNT:
                self._replace(parts, weights, added)
                self.shard.set_progress(block, frame.number, added)
                self._is_of_home[block] = True

        self.shard.update_block(frame.block, work, changes=_REPLICA)


class RoundsRelay(Relay):
    """Of a solver in rounds: a sum stays in the shard until the answer ends its round."""

    def __init__(self, number: int, shard: ThreadedShard) -> None:
        super().__init__(number, shard)
        self._sums = shard.rows[-1].numpy().data.cast("B")
        self._rounds = shard.all_rounds()
        self._sent = np.full(shard.layout.blocks, -1)
        """Of each block the round whose sum is on its way; -1: there is none."""

    @property
    def wanted(self) -> int:
        """Which refresh is wanted by those of whom the home knows: it is of their rounds then."""
        return min(self.announced, self.shard.refresh_wanted)

    @property
    def is_behind(self) -> bool:
        """Return whether all who live here are to take part in later rounds only.

        Nothing is sent then that would be answered with the weights of those that end meanwhile.
        """
        members = self.shard.members.all()
        if not members or not len(self._rounds):
            return False
        return min(member.first_round for member in members) > int(self._rounds.min())

    @property
    def behind(self) -> int:
        """How many rounds the replica has behind it, of some block."""
        return int(self._rounds.max(initial=0))

    def whole(self) -> tuple[int, int]:
        """Return the bits of those who have added to all blocks of a round without an answer.

        And which one that is. They may have left since: they still take part in it. Of who was
        killed in the middle some blocks have nothing, and nobody is to wait for it.
        """
        added, rounds = self._added.copy(), self._rounds.copy()  # `give` changes them the other way
        if not len(rounds):
            return 0, 0
        oldest = rounds.min()
        return int(np.bitwise_and.reduce(added[rounds == oldest])), int(oldest)

    def ready(self) -> list[int]:
        """Return the groups with blocks that all living learners have added to, and not sent.

        As far as a look without a lock can tell. It is asked every millisecond while learners wait
        for one another, so all blocks are looked at together.
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
        """Send sums of the same round, ranks and rate from where they lie: nobody adds to them now.

        Under the lock: what a learner that was killed had begun to add is undone there.
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

    def on_its_way(self, groups: Iterable[int]) -> list[Sending]:
        """Return none: they are `ready` again."""
        for group in groups:
            self._sent[self.shard.groups[group]] = -1
        return []

    def give(self, frame: Frame, weights: torch.Tensor) -> None:
        """End the round of blocks where it has not ended.

        Where it has, they are as the home has them: another one may have told something else.
        """
        run, new = self._run(frame, weights)

        def work(parts: Sequence[torch.Tensor], block: int) -> None:
            rounds, added = self.shard.progress(block)
            if frame.number >= rounds:
                parts[0].copy_(new[block - run.start])
                self.shard.set_progress(block, frame.number, added if frame.number == rounds else 0)

        self.shard.update_run(run, work, changes=_REPLICA)
        self._is_of_home[run] = True

    def settled(self, into: torch.Tensor) -> None:
        """Copy the replica."""
        self.shard.read(copying(self.shard, into))

    def pulled(self, frame: Frame, weights: torch.Tensor) -> None:
        """Go on to the home's round: this node's learners take no part in it."""
        self.give(frame, weights)


def own_clock(relay: Relay) -> tuple[int, int, int]:
    """Return the bits of who takes part on this node, and how far they are.

    In rounds: the first one that one of them takes part in, and how many the replica has behind
    it; otherwise the smallest clock.
    """
    members = relay.shard.members
    everyone = members.all()
    mask = 0
    for member in everyone:
        mask |= member.mask
    if not isinstance(relay, RoundsRelay):
        return mask, members.slowest(proxies=False), 0
    firsts = [member.first_round for member in everyone]
    added, oldest = relay.whole()  # after the members: who leaves has added before
    if added:
        firsts.append(oldest)
    return mask | added, min(firsts, default=0), relay.behind
