"""Rounds: the values of all learners are added up in rank order, and each sum is one step.

In a round every learner adds its values to each block once, after the learners of lower rank; the
last one also takes the step. So a block wanders from learner to learner while they work on others
(a pipeline), one row holds the sum however many learners there are, and the sum has the same bits
each time. A killed learner is no longer waited for; when it comes back, it adds from the round
after the current ones on.

On a replica the learners of its node do the same, but nobody takes a step. Once all have added to a
block, the node's server sends the sum to the primary, where it takes part in the rounds for its
whole node, in the turn of the node's lowest rank, and brings back the weights that end the round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from psrv.errors import ServerError
from psrv.push.waiting import SHORT_NAPS_S, WaitPolicy, names, wait_until
from psrv.shard.format import PRIMARY, REPLICA
from psrv.shard.membership import RANKS, Member
from psrv.shard.shard import Rows, Shard
from psrv.solvers.native import Native, is_plain

_SPINS = 20
"""How often a learner looks before it pauses."""

Step = Callable[[Sequence[torch.Tensor], torch.Tensor, int, float], None]
"""A solver's step for a block: see psrv.rules.RoundSolver.step."""


def missing(shard: Shard, rounds: int, added: int) -> list[Member]:
    """Return the members of a round that have not added."""
    return [
        member
        for member in shard.members.all()
        if member.first_round <= rounds and not added & member.mask
    ]


def before(members: Sequence[Member], mask: int) -> list[Member]:
    """Return the members outside a mask that add before the lowest rank in it."""
    lowest = mask & -mask
    return [
        member
        for member in members
        if member.mask & -member.mask < lowest and not member.mask & mask
    ]


def settle(shard: Shard, block: int, rounds: int, step: Step) -> None:
    """Take the step of a round on its primary and end it, if all its living members have added.

    Nothing happens if it has ended already.
    """

    def work(parts: Sequence[torch.Tensor], block: int) -> None:
        now, added = shard.progress(block)
        if now == rounds and not missing(shard, now, added):
            if added:
                step(parts[:-1], parts[-1], added.bit_count(), shard.round_rate(block))
            shard.set_progress(block, now + 1, 0)

    shard.update_block(block, work)


def add_to_sum(
    shard: Shard,
    block: int,
    rounds: int,
    mask: int,
    mine: torch.Tensor,
    rate: float,
    step: Step | None,
    native: Native | None = None,
) -> bool:
    """Add the values of the learners in a mask to the sum of a block; the last one ends the round.

    Nothing happens if that round is over, or they have added before. The round has the learning
    rate of the learner that adds first, so the bits don't depend on which one ends it.

    Args:
        shard: A primary or a replica.
        block: Its number.
        rounds: The round's number.
        mask: Bits of the ranks.
        mine: Their values, of the block's length.
        rate: Their learning rate.
        step: The solver's; None on a replica, whose primary ends the round.
        native: Adds, and takes the step, in one pass, for float32 values; None if torch does.

    Returns:
        Whether the round has come or is over; if not, wait again. The learner that ended the round
        before was killed at that moment, and its work is undone.
    """
    settled = adds = ends = False
    if not is_plain(mine):
        native = None

    def changes(block: int) -> Rows:
        nonlocal settled, adds, ends
        now, added = shard.progress(block)
        settled, adds = now >= rounds, now == rounds and not added & mask
        ends = adds and step is not None and not missing(shard, now, added | mask)
        total = len(shard.rows) - 1
        if ends:
            return Rows(0, total + (native is None), copied=native is None)
        # An empty sum means nothing, and needs no copy.
        return Rows(total, total + bool(adds and added), copied=native is None)

    def add(parts: Sequence[torch.Tensor], block: int) -> None:
        if not adds:
            return
        added = shard.progress(block)[1]
        first, learners = not added, (added | mask).bit_count()
        if first:
            shard.set_round_rate(block, rate)
        if native is not None and ends:
            native.add_last(block, mine.data_ptr(), first, learners, shard.round_rate(block))
        elif native is not None:
            native.add(block, mine.data_ptr(), first)
        else:
            parts[-1].copy_(mine) if first else parts[-1].add_(mine)
            if ends and step is not None:
                step(parts[:-1], parts[-1], learners, shard.round_rate(block))
        shard.set_progress(block, *((rounds + 1, 0) if ends else (rounds, added | mask)))

    shard.update_block(block, add, changes=changes)
    return settled


class Turn:
    """A learner's place in the rounds: the number of its next round is the same in all shards.

    (Otherwise a learner could wait in one shard for another that waits for it in the next.)

    Args:
        shards: All of them, joined.
        rank: This learner's, 0 to RANKS - 1.
        learners: How many there are at the beginning.
        wait_policy: How long to wait for them then; later, how long to wait before a warning.

    Raises:
        ServerError: Some have not joined.
    """

    def __init__(
        self, shards: Sequence[Shard], rank: int, learners: int, wait_policy: WaitPolicy
    ) -> None:
        if max(learners, rank + 1) > RANKS:
            raise ServerError(
                f"rounds are for {RANKS} learners at most, and there are {learners}",
                hint="use a solver that does not wait for all",
            )
        self._shards = shards
        self.wait_policy = wait_policy
        self.mask = 1 << rank
        # Shards that do not wait for us: we were there before, and a round may begin right now.
        begun = [shard for shard in shards if shard.expected == 1]
        self.number = self._newest(shards)
        """The number of the next round to take part in."""
        self._enter()
        if self.number == 0:
            for shard in shards:
                _wait_for(shard, learners, wait_policy.timeout_s)
        else:
            self._sync_with_primaries()
        # A learner that added to a round before we entered does not wait for us: the sum of a
        # replica may be on its way to the primary, and nobody may add to it. One that adds from now
        # on waits.
        while (first := self._newest(shards if self.number else begun)) > self.number:
            self.number = first
            self._enter()

    def _sync_with_primaries(self) -> None:
        """Wait until the primaries of replicas know this learner, and continue with their round.

        They may have gone on without this node: a push to a round that is over there is lost, and a
        round that nobody is in never ends.
        """
        replicas = [shard for shard in self._shards if shard.layout.kind == REPLICA]
        if not wait_until(refreshes(replicas), self.wait_policy):
            return  # do not wait longer for an unreachable server, which has told nothing yet
        first = max([self.number, *(shard.elsewhere for shard in replicas)])
        if first > self.number:
            self.number = first
            self._enter()

    def catch_up(self) -> None:
        """Continue with the newest round of any shard, if all have gone on without this node."""
        progress = [shard.all_progress() for shard in self._shards]
        newest = max((rounds for blocks in progress for rounds, _ in blocks), default=0)
        if newest > self.number:
            self.number = newest
            self._enter()

    @staticmethod
    def _newest(shards: Sequence[Shard]) -> int:
        return max(map(next_round, shards), default=0)

    def _enter(self) -> None:
        for shard in self._shards:
            shard.members.enter(shard.slot, self.mask, self.number)


def refreshes(replicas: Sequence[Shard]) -> Callable[[], bool]:
    """Ask for a refresh of replicas; return a function that tells whether all are complete."""
    wanted = [(shard, shard.want_refresh()) for shard in replicas]
    return lambda: all(shard.refreshed >= number for shard, number in wanted)


def next_round(shard: Shard) -> int:
    """Return the first round that a new member can take part in, for all blocks.

    For a replica the primary decides that for the node, and may choose a later one.
    """
    progress = shard.all_progress()
    if any(rounds or added for rounds, added in progress):
        newest = max(rounds for rounds, _ in progress)
        nobody_here = shard.layout.kind == REPLICA and not any(added for _, added in progress)
        return newest if nobody_here else newest + 1
    return 0


def _wait_for(shard: Shard, learners: int, timeout_s: float) -> None:
    """Wait until as many learners have joined as the shard expects, or rounds have begun.

    Args:
        shard: Where to wait.
        learners: How many to expect if the shard does not say.
        timeout_s: How long to wait.
    """
    deadline = time.monotonic() + timeout_s
    while not any(shard.progress(0)):
        ranks = shard.members.ranks()
        wanted = shard.expected or learners  # lower once a node is lost
        if ranks.bit_count() >= wanted:
            shard.expected = 1
            return
        if time.monotonic() > deadline:
            here = [str(rank) for rank in range(RANKS) if ranks >> rank & 1]
            raise ServerError(
                f"of {wanted} learners {wanted - len(here)} have not joined the parameter "
                f"server for {timeout_s:g} s: there are only rank {', '.join(here)}",
                hint="the others' logs say why: see `dlctl logs`",
            )
        time.sleep(1e-3)


class Rounds:
    """One learner's part in the rounds of one shard, whose last row is the sum."""

    def __init__(self, shard: Shard, turn: Turn, native: Native | None = None) -> None:
        self._shard = shard
        self._native = native
        self._is_primary = shard.layout.kind == PRIMARY
        self._turn = turn

    def add(self, mine: Sequence[torch.Tensor], rate: float, step: Step) -> None:
        """Add this learner's values, once in a round, after those of lower ranks.

        Args:
            mine: The values, cut into blocks.
            rate: This learner's learning rate; it is the round's if this learner adds first.
            step: The solver's, which the last learner takes on a primary.
        """
        shard, number = self._shard, self._turn.number
        end = step if self._is_primary else None
        for block in range(shard.layout.blocks):
            self._until(partial(self._my_turn, block, step))
            # The round may be complete without us if we had not joined yet.
            while not add_to_sum(
                shard, block, number, self._turn.mask, mine[block], rate, end, self._native
            ):
                self._until(partial(self._my_turn, block, step))

    def finish(self, step: Step, take: Callable[[torch.Tensor, int], None]) -> None:
        """Wait for the round's end; `take` gets each block's new weights, and its number.

        Once all shards have finished, the caller counts the turn up.
        """
        shard, wanted = self._shard, self._turn.number + 1
        for block in range(shard.layout.blocks):
            self._until(partial(self._behind, block, wanted, step))
        undone: list[int] = []

        def look(parts: Sequence[torch.Tensor], block: int) -> None:
            if shard.progress(block)[0] >= wanted:
                take(parts[0], block)
            else:  # its last member was killed at that moment
                undone.append(block)

        shard.read(look)
        while undone:
            block = undone.pop()
            self._until(partial(self._behind, block, wanted, step))
            shard.read_block(block, look)

    def _my_turn(self, block: int, step: Step) -> list[int] | None:
        """Return None if this learner may add, or the slots of the members that add before it."""
        rounds, added = self._shard.progress(block)
        if rounds < self._turn.number:
            return self._behind(block, self._turn.number, step) or []
        waited_for = missing(self._shard, rounds, added) if rounds == self._turn.number else []
        return [member.slot for member in before(waited_for, self._turn.mask)] or None

    def _behind(self, block: int, wanted: int, step: Step) -> list[int] | None:
        """Return None if this many rounds of a block have ended, or the slots that are waited for.

        If no member is missing, the one that would have ended the round is gone: end it. On a
        replica the server is waited for.
        """
        rounds, added = self._shard.progress(block)
        if rounds >= wanted:
            return None
        slots = [member.slot for member in missing(self._shard, rounds, added)]
        if not slots and self._is_primary:
            settle(self._shard, block, rounds, step)
        return slots

    def _until(self, waited_for: Callable[[], list[int] | None]) -> None:
        """Wait until nothing is missing; remove dead members meanwhile."""
        tries, wait = 0, self._turn.wait_policy.begin(SHORT_NAPS_S)
        while (slots := waited_for()) is not None:
            tries += 1
            if tries >= _SPINS and wait.nap():
                for slot in slots:
                    self._shard.members.remove_if_dead(slot)
                wait.look(partial(self._names, slots), may_be_gone=self._are_elsewhere(slots))

    def _are_elsewhere(self, slots: list[int]) -> bool:
        """Return whether only learners or servers of other nodes are waited for."""
        return set(slots) <= set(self._shard.members.proxies().values())

    def _names(self, slots: list[int]) -> str:
        """Return the ranks of these slots in words."""
        members = self._shard.members.all()
        return names(sum(member.mask for member in members if member.slot in slots))
