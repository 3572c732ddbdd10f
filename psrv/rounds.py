"""Rounds: the values of all learners, added up in rank order, and a step for the sum of each block.

In a round every learner adds its values to each block once, after the learners of smaller rank;
the last one also takes the step. So a block wanders through the learners while they work on others
(a pipeline), one row holds the sum however many learners there are, and the sum has the same bits
each time. A learner that was killed is waited for no longer; it adds again from the round after
those that are on their way when it comes back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from psrv.errors import ServerError
from psrv.shard import Shard

RANKS = 62
"""Bits of a word, but for its sign."""
_SPINS = 20
_NAP_S, _LONGEST_NAP_S = 20e-6, 1e-3
_LOOK_FOR_DEAD_S = 0.05

Step = Callable[[Sequence[torch.Tensor], torch.Tensor, int, int], None]
"""Gets a block of the rows (the weights first), the sum, how many have added, and its number."""


class Rounds:
    """One learner's part in the rounds of one shard, whose last row is the sum.

    Args:
        shard: joined.
        rank: This learner's, 0 to RANKS - 1.
        learners: How many there are at the begin.
        timeout_s: How long they are waited for then.

    Raises:
        ServerError: some have not come.
    """

    def __init__(self, shard: Shard, rank: int, learners: int, timeout_s: float) -> None:
        if learners > RANKS:
            raise ServerError(
                f"rounds are for {RANKS} learners of a node at most, and there are {learners}",
                hint="use a solver that does not wait for all, or more nodes",
            )
        self._shard = shard
        self._rank = rank
        self.round = 0
        """The next round to take part in."""
        progress = [shard.progress(block) for block in range(shard.layout.blocks)]
        if any(rounds or added for rounds, added in progress):
            self.round = max(rounds for rounds, _ in progress) + 1
            shard.enter(rank, self.round)
        else:
            shard.enter(rank, 0)
            self._wait_for(learners, timeout_s)

    def _wait_for(self, learners: int, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            ranks = {rank for rank, _, _ in self._shard.members()}
            begun = any(self._shard.progress(0))
            if len(ranks) >= learners or begun:
                return
            if time.monotonic() > deadline:
                missing = sorted(set(range(learners)) - ranks)
                raise ServerError(
                    f"of {learners} learners {len(missing)} have not joined the parameter server "
                    f"for {timeout_s:g} s: rank {', '.join(map(str, missing))}",
                    hint="their logs say why: see `dlctl logs`",
                )
            time.sleep(_LONGEST_NAP_S)

    def run(
        self, mine: Sequence[torch.Tensor], step: Step, take: Callable[[torch.Tensor, int], None]
    ) -> None:
        """Take part in a round; return when it is complete: `add`, and `finish`."""
        self.add(mine, step)
        self.finish(step, take)

    def add(self, mine: Sequence[torch.Tensor], step: Step) -> None:
        """Add this learner's values, once in a round, after those of smaller rank.

        Args:
            mine: The values, cut into blocks.
            step: What is done with the sum of a block, by one of the learners.
        """
        for block in range(self._shard.layout.blocks):
            self._until(partial(self._my_turn, block, step))
            self._add(block, mine[block], step)

    def finish(self, step: Step, take: Callable[[torch.Tensor, int], None]) -> None:
        """Wait for the round's end; `take` gets each block's new weights, and its number."""
        for block in range(self._shard.layout.blocks):
            self._until(partial(self._behind, block, self.round + 1, step))
        self._shard.read(lambda parts, block: take(parts[0], block))
        self.round += 1

    def _add(self, block: int, mine: torch.Tensor, step: Step) -> None:
        def add(parts: Sequence[torch.Tensor], block: int) -> None:
            rounds, added = self._shard.progress(block)
            if rounds != self.round:
                return  # complete without us, who had not joined yet
            total = parts[-1]
            if added:
                total += mine
            else:
                total.copy_(mine)
            self._shard.set_progress(block, rounds, added | 1 << self._rank)
            self._settle(parts, block, step)

        self._shard.update_block(block, add)

    def _settle(self, parts: Sequence[torch.Tensor], block: int, step: Step) -> None:
        """Take the step and end the round, if all of its members who live have added."""
        rounds, added = self._shard.progress(block)
        if not self._missing(rounds, added):
            if added:
                step(parts[:-1], parts[-1], added.bit_count(), block)
            self._shard.set_progress(block, rounds + 1, 0)

    def _missing(self, rounds: int, added: int) -> list[tuple[int, int]]:
        """Return rank and slot of the members of a round who have not added."""
        return [
            (rank, slot)
            for rank, slot, first in self._shard.members()
            if first <= rounds and not added >> rank & 1
        ]

    def _my_turn(self, block: int, step: Step) -> list[int] | None:
        """Return None if this learner may add, or the slots of those that are waited for."""
        rounds, added = self._shard.progress(block)
        if rounds < self.round:
            return self._behind(block, self.round, step) or []
        missing = self._missing(rounds, added) if rounds == self.round else []
        return [slot for rank, slot in missing if rank < self._rank] or None

    def _behind(self, block: int, wanted: int, step: Step) -> list[int] | None:
        """Return None if a block has so many rounds behind it, or the slots that are waited for.

        Where nobody is waited for, who would have ended the round is gone: end it.
        """
        rounds, added = self._shard.progress(block)
        if rounds >= wanted:
            return None
        slots = [slot for _, slot in self._missing(rounds, added)]
        if not slots:

            def settle(parts: Sequence[torch.Tensor], block: int) -> None:
                if self._shard.progress(block)[0] < wanted:
                    self._settle(parts, block, step)

            self._shard.update_block(block, settle)
        return slots

    def _until(self, waited_for: Callable[[], list[int] | None]) -> None:
        """Wait until nothing is waited for; strike off who is dead."""
        tries, nap_s, look_at = 0, _NAP_S, time.monotonic() + _LOOK_FOR_DEAD_S
        while (slots := waited_for()) is not None:
            tries += 1
            if tries < _SPINS:
                continue
            time.sleep(nap_s)
            nap_s = min(2 * nap_s, _LONGEST_NAP_S)
            if time.monotonic() > look_at:
                look_at = time.monotonic() + _LOOK_FOR_DEAD_S
                for slot in slots:
                    self._shard.strike_if_dead(slot)
