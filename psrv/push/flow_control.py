"""How many pushes may wait on a node for the homes of other nodes.

While a home is away the replica here does not move, and what learners push is added up: it would
arrive as one step, as long as all of them together, and a training diverges by that. Where the
replica moves by itself it does not; but they are counted, and their number has so many bits.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch

from psrv.push.waiting import Patience, names
from psrv.shard.format import COUNT, COUNT_BITS, SLOTS
from psrv.shard.membership import Members
from psrv.shard.shard import Shard, Words

MOST = 16
"""Pushes of each learner of this node, in the total of any block."""
_NAP_S, _LONGEST_NAP_S = 1e-3, 0.05


class Backlog:
    """What has gathered in relays.

    Args:
        relays: Of solvers at once.
        patience: How long a learner waits without a word.
        moves: Whether their replicas move by themselves: as many may wait then as can be counted.
    """

    def __init__(self, relays: Sequence[Shard], patience: Patience, *, moves: bool = False) -> None:
        self._relays = [(shard.members, shard.all_added()) for shard in relays]
        self._moves = moves
        self._patience = patience

    def wait(self) -> float:
        """Wait while there is too much; return the seconds that it took.

        Raises:
            LateError: a halt leaves no more time.
        """
        if not self._too_much():
            return 0.0
        began_at, wait, nap_s = time.monotonic(), self._patience.begin(), _NAP_S
        while self._too_much():
            time.sleep(nap_s)
            nap_s = min(2 * nap_s, _LONGEST_NAP_S)
            wait.look(lambda: names(0), may_be_gone=True)
        return time.monotonic() - began_at

    def _too_much(self) -> bool:
        for members, added in self._relays:
            pushes = int((added & COUNT).max(initial=0))
            if pushes > MOST and pushes > self._most(members):
                return True
        return False

    def _most(self, members: Members) -> int:
        if self._moves:
            return COUNT - SLOTS  # each learner may have looked just before
        return MOST * len(members.all())


class Outgoing:
    """What relays hold when this is made, and whether it has come to its homes since.

    What others push meanwhile is not waited for: that may never end.
    """

    def __init__(self, relays: Sequence[Shard]) -> None:
        self._blocks = [_Blocks(shard) for shard in relays]

    def has_come(self) -> bool:
        """Return whether all of it has; ask again and again."""
        return all([blocks.look() for blocks in self._blocks])


class _Blocks:
    """The same of one relay. It may see an exchange late, and wait for the next one then.

    It believes nothing that somebody is at work on: a server that was killed there is undone.
    """

    def __init__(self, shard: Shard) -> None:
        self._added, self._sequences = shard.all_added(), shard.all_sequences()
        self._seen: Words = np.zeros_like(self._added)
        shard.read(self._see)
        self._left = self._seen != 0
        self._gathered = self._seen & COUNT != 0
        """Whether it is in the total still; otherwise in the exchange that was seen last."""

    def _see(self, _: Sequence[torch.Tensor], block: int) -> None:
        self._seen[block] = self._added[block]

    def look(self) -> bool:
        sequences, now = self._sequences.copy(), self._added.copy()
        whole = (sequences % 2 == 0) & (sequences == self._sequences)
        now = np.where(whole, now, self._seen)
        number = now >> COUNT_BITS
        new = number != self._seen >> COUNT_BITS
        self._left &= (now != 0) & (self._gathered | ~new)
        self._gathered &= ~new | (number == 0)
        self._seen = now
        return not self._left.any()
