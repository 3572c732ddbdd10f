"""Rounds: the values of all learners, added up in rank order, and a step for the sum of each block.

In a round every learner adds its values to each block once, after the learners of smaller rank;
the last one also takes the step. So a block wanders through the learners while they work on others
(a pipeline), one row holds the sum however many learners there are, and the sum has the same bits
each time. A learner that was killed is waited for no longer; it adds again from the round after
those that are on their way when it comes back.

On a relay the learners of its node do the same, but nobody takes a step: the node's server sends
the sum of a block that all have added to on to the home, where it takes part in the rounds for its
whole node, in the turn of the node's lowest rank, and brings back the weights that end the round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from psrv.errors import ServerError
from psrv.push.waiting import Patience, names, wait_until
from psrv.shard.format import HOME, RELAY
from psrv.shard.membership import RANKS, Member
from psrv.shard.shard import Rows, Shard
from psrv.solvers.native import FusedRounds, is_plain

_SPINS = 20
_NAP_S, _LONGEST_NAP_S = 20e-6, 1e-3
_LOOK_FOR_DEAD_S = 0.05

Step = Callable[[Sequence[torch.Tensor], torch.Tensor, int, float], None]
"""A solver's, for a block: see psrv.rules.RoundSolver.step."""


def missing(shard: Shard, rounds: int, added: int) -> list[Member]:
    """Return the members of a round who have not added."""
    return [
        member
        for member in shard.members.all()
        if member.first_round <= rounds and not added & member.mask
    ]


def before(members: Sequence[Member], mask: int) -> list[Member]:
    """Return those of others whose turn comes before that of the lowest rank in a mask."""
    lowest = mask & -mask
    return [
        member
        for member in members
        if member.mask & -member.mask < lowest and not member.mask & mask
    ]


def settle(shard: Shard, block: int, rounds: int, step: Step) -> None:
    """Take the step of a round at its home and end it, if all of its members who live have added.

    Nothing is done if it has ended already.
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
    fused: FusedRounds | None = None,
) -> bool:
    """Add the values of the learners of a mask to the sum of a block; the last one ends the round.

    Nothing is done if that round is over, or they were added before. The round has the learning
    rate of who adds first: whoever takes its step, the result has the same bits.

    Args:
        shard: A shard.
        block: Its number.
        rounds: The round's number.
        mask: Bits of the ranks.
        mine: Their values, of the block's length.
        rate: Their learning rate.
        step: The solver's; None: another node is the home, and ends the round.
        fused: Does it in one pass, if there is that: for values of float32.

    Returns:
        Whether that is settled; otherwise the round has not come yet: it was seen too early, for
        who ended the one before was killed just then, and that is undone.
    """
    settled = adds = ends = False
    in_one = fused if is_plain(mine) else None

    def changes(block: int) -> Rows:
        nonlocal settled, adds, ends
        now, added = shard.progress(block)
        settled, adds = now >= rounds, now == rounds and not added & mask
        ends = adds and step is not None and not missing(shard, now, added | mask)
        total = len(shard.rows) - 1
        if ends:
            return Rows(0, total + (in_one is None), copied=in_one is None)
        # What is in an empty sum means nothing.
        return Rows(total, total + bool(adds and added), copied=in_one is None)

    def add(parts: Sequence[torch.Tensor], block: int) -> None:
        if not adds:
            return
        added = shard.progress(block)[1]
        first, learners = not added, (added | mask).bit_count()
        if first:
            shard.set_round_rate(block, rate)
        _add(shard, parts, block, mine, first, step if ends else None, learners, in_one)
        shard.set_progress(block, *((rounds + 1, 0) if ends else (rounds, added | mask)))

    shard.update_block(block, add, changes=changes)
    return settled


def _add(
    shard: Shard,
    parts: Sequence[torch.Tensor],
    block: int,
    mine: torch.Tensor,
    first: bool,
    step: Step | None,
    learners: int,
    in_one: FusedRounds | None,
) -> None:
    """Add to the sum, or be the first; with a step, take that for the sum of so many learners."""
    rate = shard.round_rate(block)
    if in_one is not None and step is not None:
        in_one.add_last(block, mine.data_ptr(), first, learners, rate)
    elif in_one is not None:
        in_one.add(block, mine.data_ptr(), first)
    else:
        if first:
            parts[-1].copy_(mine)
        else:
            parts[-1].add_(mine)
        if step is not None:
            step(parts[:-1], parts[-1], learners, rate)


class Turn:
    """A learner's place in the rounds: its number is the same in all of its shards.

    (Were it not, a learner could wait in one shard for another one that waits for it in the next.)

    Args:
        shards: all of them, joined.
        rank: This learner's, 0 to RANKS - 1.
        learners: How many there are at the begin.
        patience: How long they are waited for then; later, how long without a word.

    Raises:
        ServerError: some have not come.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        rank: int,
        learners: int,
        patience: Patience,
    ) -> None:
        if max(learners, rank + 1) > RANKS:
            raise ServerError(
                f"rounds are for {RANKS} learners at most, and there are {learners}",
                hint="use a solver that does not wait for all",
            )
        self._shards = shards
        self.patience = patience
        self.mask = 1 << rank
        # Where we have been before, nobody waits for us: rounds may begin just now.
        begun = [shard for shard in shards if shard.expected == 1]
        self.number = self._newest(shards)
        """Of the next round to take part in."""
        self._enter()
        if self.number == 0:
            for shard in shards:
                _wait_for(shard, learners, patience.timeout_s)
        else:
            self._meet_homes()
        # Who has added to a round before we entered it does not wait for us: on a relay the sum may
        # be on its way to the home, and nobody may add to it. Who adds from now on waits.
        while (first := self._newest(shards if self.number else begun)) > self.number:
            self.number = first
            self._enter()

    def _meet_homes(self) -> None:
        """Wait until the homes of relays know of this learner, and go on with their round.

        They may have gone on without this node: what is pushed in a round that is over there is in
        nothing, and a round that nobody is in ends by nobody.
        """
        relays = [shard for shard in self._shards if shard.layout.kind == RELAY]
        wanted = [shard.want_refresh() for shard in relays]

        def met() -> bool:
            return all(s.refreshed >= n for s, n in zip(relays, wanted, strict=True))

        if not wait_until(met, self.patience):
            return  # a server that is away is not waited for longer, and has said nothing yet
        first = max([self.number, *(shard.elsewhere for shard in relays)])
        if first > self.number:
            self.number = first
            self._enter()

    def catch_up(self) -> None:
        """Go on with the newest round of any shard, if all have gone on without this node."""
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


def next_round(shard: Shard) -> int:
    """Return the first round that a member who comes now can take part in, of every block.

    To a relay its home says that of the node, which may be a later one.
    """
    progress = shard.all_progress()
    if any(rounds or added for rounds, added in progress):
        newest = max(rounds for rounds, _ in progress)
        nobody_here = shard.layout.kind == RELAY and not any(added for _, added in progress)
        return newest if nobody_here else newest + 1
    return 0


def _wait_for(shard: Shard, learners: int, timeout_s: float) -> None:
    """Wait until so many have joined as the shard's server says, or rounds have begun.

    Args:
        learners: How many that is if it says nothing.
    """
    deadline = time.monotonic() + timeout_s
    while not any(shard.progress(0)):
        ranks = shard.members.ranks()
        wanted = shard.expected or learners  # fewer once a node is lost
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
        time.sleep(_LONGEST_NAP_S)


class Rounds:
    """One learner's part in the rounds of one shard, whose last row is the sum."""

    def __init__(self, shard: Shard, turn: Turn, fused: FusedRounds | None = None) -> None:
        self._shard = shard
        self._fused = fused
        self._home = shard.layout.kind == HOME
        self._turn = turn

    def add(self, mine: Sequence[torch.Tensor], rate: float, step: Step) -> None:
        """Add this learner's values, once in a round, after those of smaller rank.

        Args:
            mine: The values, cut into blocks.
            rate: This learner's learning rate: the round's, if it is the first one.
            step: What is done with the sum of a block, by one of the learners; not on a relay.
        """
        shard, number = self._shard, self._turn.number
        ends = step if self._home else None
        for block in range(shard.layout.blocks):
            self._until(partial(self._my_turn, block, step))
            # It may be complete without us, who had not joined yet.
            while not add_to_sum(
                shard, block, number, self._turn.mask, mine[block], rate, ends, self._fused
            ):
                self._until(partial(self._my_turn, block, step))

    def finish(self, step: Step, take: Callable[[torch.Tensor, int], None]) -> None:
        """Wait for the round's end; `take` gets each block's new weights, and its number.

        The turn is then to be counted up, once all shards have finished.
        """
        shard, wanted = self._shard, self._turn.number + 1
        for block in range(shard.layout.blocks):
            self._until(partial(self._behind, block, wanted, step))
        undone: list[int] = []

        def look(parts: Sequence[torch.Tensor], block: int) -> None:
            if shard.progress(block)[0] >= wanted:
                take(parts[0], block)
            else:  # who ended the round was killed just then
                undone.append(block)

        shard.read(look)
        while undone:
            block = undone.pop()
            self._until(partial(self._behind, block, wanted, step))
            shard.read_block(block, look)

    def _my_turn(self, block: int, step: Step) -> list[int] | None:
        """Return None if this learner may add, or the slots of those that are waited for."""
        rounds, added = self._shard.progress(block)
        if rounds < self._turn.number:
            return self._behind(block, self._turn.number, step) or []
        waited_for = missing(self._shard, rounds, added) if rounds == self._turn.number else []
        return [member.slot for member in before(waited_for, self._turn.mask)] or None

    def _behind(self, block: int, wanted: int, step: Step) -> list[int] | None:
        """Return None if a block has so many rounds behind it, or the slots that are waited for.

        Where nobody is waited for, who would have ended the round is gone: end it. On a relay it is
        the server that is waited for.
        """
        rounds, added = self._shard.progress(block)
        if rounds >= wanted:
            return None
        slots = [member.slot for member in missing(self._shard, rounds, added)]
        if not slots and self._home:
            settle(self._shard, block, rounds, step)
        return slots

    def _until(self, waited_for: Callable[[], list[int] | None]) -> None:
        """Wait until nothing is waited for; strike off who is dead."""
        tries, nap_s, look_at = 0, _NAP_S, time.monotonic() + _LOOK_FOR_DEAD_S
        wait = self._turn.patience.begin()
        while (slots := waited_for()) is not None:
            tries += 1
            if tries < _SPINS:
                continue
            time.sleep(nap_s)
            nap_s = min(2 * nap_s, _LONGEST_NAP_S)
            if time.monotonic() > look_at:
                look_at = time.monotonic() + _LOOK_FOR_DEAD_S
                for slot in slots:
                    self._shard.members.strike_if_dead(slot)
                wait.look(partial(self._names, slots), may_be_gone=self._are_elsewhere(slots))

    def _are_elsewhere(self, slots: list[int]) -> bool:
        """Return whether it is other nodes' learners or servers that are waited for."""
        return set(slots) <= set(self._shard.members.proxies().values())

    def _names(self, slots: list[int]) -> str:
        """Return who has these slots."""
        members = self._shard.members.all()
        return names(sum(member.mask for member in members if member.slot in slots))
