"""Flow control: how many pushes may wait on a node for primaries on other nodes.

While a primary is unreachable the replica here does not move, and pushes are added up. They would
arrive as one step, as long as all of them together, which makes a training diverge. A replica that
moves by itself has no such problem; but the counter of its pushes has limited bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from psrv.push.waiting import WaitPolicy, names
from psrv.shard.format import COUNT, COUNT_BITS, SLOTS
from psrv.shard.membership import Membership
from psrv.shard.shard import Shard, Words

MOST = 16
"""Pushes of each learner of this node that the total of a block may hold."""


class FlowControl:
    """Bounds the pushes that have gathered in replicas.

    Args:
        replicas: Those of a solver that does not work in rounds.
        wait_policy: How long a learner waits before it warns.
        moves: Whether pushes move the replicas, too: then the counter is the only limit.
    """

    def __init__(
        self, replicas: Sequence[Shard], wait_policy: WaitPolicy, *, moves: bool = False
    ) -> None:
        self._replicas = [(shard.members, shard.all_added()) for shard in replicas]
        self._moves = moves
        self._wait_policy = wait_policy

    def wait(self) -> float:
        """Wait while too many pushes have gathered; return the seconds that it took.

        Raises:
            LateError: A halt leaves no more time.
        """
        if not self._is_full():
            return 0.0
        wait = self._wait_policy.begin()
        while self._is_full():
            if wait.nap():
                wait.look(lambda: names(0), may_be_gone=True)
        return wait.waited_s

    def _is_full(self) -> bool:
        for members, added in self._replicas:
            pushes = int((added & COUNT).max(initial=0))
            if pushes > MOST and pushes > self._limit(members):
                return True
        return False

    def _limit(self, members: Membership) -> int:
        if self._moves:
            return COUNT - SLOTS  # each learner may have checked just before
        return MOST * len(members.all())


class Outgoing:
    """The pushes that replicas hold now, and whether they have reached their primaries since.

    Pushes that come later are not waited for: that might never end.
    """

    def __init__(self, replicas: Sequence[Shard]) -> None:
        self._blocks = [_Blocks(shard) for shard in replicas]

    def has_come(self) -> bool:
        """Return whether all of these pushes have reached their primaries; call it repeatedly."""
        return all([blocks.look() for blocks in self._blocks])


class _Blocks:
    """The pushes in one replica; an exchange may be noticed late, which only delays the answer.

    A block that somebody is working on is not believed: if that process is killed, its work is
    undone.
    """

    def __init__(self, shard: Shard) -> None:
        self._added, self._sequences = shard.all_added(), shard.all_sequences()
        self._last_words: Words = np.zeros_like(self._added)
        shard.read(self._see)
        self._left = self._last_words != 0
        self._gathered = self._last_words & COUNT != 0
        """Whether the pushes are still in the total; otherwise they are in the exchange seen
        last."""

    def _see(self, _: Sequence[torch.Tensor], block: int) -> None:
        self._last_words[block] = self._added[block]

    def look(self) -> bool:
        sequences, now = self._sequences.copy(), self._added.copy()
        whole = (sequences % 2 == 0) & (sequences == self._sequences)
        now = np.where(whole, now, self._last_words)
        number = now >> COUNT_BITS
        new = number != self._last_words >> COUNT_BITS
        self._left &= (now != 0) & (self._gathered | ~new)
        self._gathered &= ~new | (number == 0)
        self._last_words = now
        return not self._left.any()
