"""Who takes part in a shard: its slots.

A slot is a line of eight words, and a lock on its first byte that the kernel frees when its owner
dies. A learner's slot speaks for its own rank; at a shard's home the server has further ones, its
proxies for other nodes, each of which speaks for all ranks of its node.
"""

from __future__ import annotations

import fcntl
import threading
from contextlib import suppress
from typing import NamedTuple

from psrv.shard.format import LINE, NEVER, SLOTS, SLOTS_AT

MASK, JOINED, KEPT_ROUND, KEPT_ADDED, KEPT_ROWS, CLOCK, NODE = range(1, LINE)
"""Words of a slot, whose first one is only locked: the bits of the ranks it speaks for, none if it
is no member; its first round; the progress of the block in its copy, and which of its rows were
copied; how many pushes its learner has done; for which node it is a proxy, counted from 1."""
RANKS = 62
"""Bits of a word, but for its sign."""
_lockf, _UNLOCK = fcntl.lockf, fcntl.LOCK_UN
_TRY = fcntl.LOCK_EX | fcntl.LOCK_NB


class Member(NamedTuple):
    """One that has entered."""

    mask: int
    slot: int
    first_round: int


class Members:
    """The slots of a shard, as one process sees them."""

    def __init__(self, descriptor: int, words: memoryview) -> None:
        self._descriptor = descriptor
        self._words = words
        self._masks = words[SLOTS_AT + MASK : SLOTS_AT + SLOTS * LINE : LINE]
        self._own: set[int] = set()
        self._lock = threading.Lock()

    def take(self) -> int | None:
        """Lock a slot that no living process has and that is nobody's proxy; None: all have one."""
        with self._lock:
            for slot in range(SLOTS):
                at = SLOTS_AT + slot * LINE
                if slot not in self._own and not self._words[at + NODE] and self._try(slot):
                    self._words[at + MASK] = self._words[at + CLOCK] = 0
                    return slot
        return None

    def proxy(self, node: int) -> int | None:
        """Return the slot that stands for a node, and is not given up when its owner dies.

        What an earlier server of this home has left is taken over. None: all slots are taken.
        """
        for slot in range(SLOTS):
            at = SLOTS_AT + slot * LINE
            if self._words[at + NODE] == node + 1:
                with self._lock:
                    if slot in self._own or self._try(slot):
                        return slot
        if (taken := self.take()) is not None:
            self._words[SLOTS_AT + taken * LINE + NODE] = node + 1
        return taken

    def proxies(self) -> dict[int, int]:
        """Return the slot of each node that has a proxy, this process's or one left behind."""
        nodes = self._words[SLOTS_AT + NODE : SLOTS_AT + SLOTS * LINE : LINE].tolist()
        return {node - 1: slot for slot, node in enumerate(nodes) if node}

    def enter(self, slot: int, mask: int, first_round: int = 0) -> None:
        """Make a slot of this process a member; or change what it speaks for, and from when on."""
        at = SLOTS_AT + slot * LINE
        self._words[at + JOINED] = first_round
        self._words[at + MASK] = mask

    def pause(self, slot: int) -> None:
        """Make a slot of this process no member; it is kept."""
        self._words[SLOTS_AT + slot * LINE + MASK] = 0

    def remove(self, slot: int) -> None:
        """Give a slot of this process, or a proxy that a dead server has left, back."""
        at = SLOTS_AT + slot * LINE
        self._words[at + MASK] = 0
        self._words[at + NODE] = 0
        with self._lock:
            self._own.discard(slot)
            _lockf(self._descriptor, _UNLOCK, 1, 8 * at)

    def all(self) -> list[Member]:
        """Return who has entered and is not known to be dead."""
        words = self._words
        return [
            Member(mask, slot, words[SLOTS_AT + slot * LINE + JOINED])
            for slot, mask in enumerate(self._masks.tolist())
            if mask
        ]

    def ranks(self) -> int:
        """Return the bits of all ranks that members speak for."""
        found = 0
        for mask in self._masks.tolist():
            found |= mask
        return found

    def clock(self, slot: int) -> int:
        """Return how many pushes the learner of a slot has done; of a proxy the slowest one."""
        return self._words[SLOTS_AT + slot * LINE + CLOCK]

    def set_clock(self, slot: int, pushes: int) -> None:
        """Say so, of a slot of this process."""
        self._words[SLOTS_AT + slot * LINE + CLOCK] = pushes

    def slowest(self, *, but: int | None = None, proxies: bool = True) -> int:
        """Return the smallest clock of the members, or NEVER: there are none.

        Args:
            but: A slot that is left out.
            proxies: Whether those of other nodes count.
        """
        found = NEVER
        for slot, mask in enumerate(self._masks.tolist()):
            at = SLOTS_AT + slot * LINE
            if mask and slot != but and (proxies or not self._words[at + NODE]):
                found = min(found, self._words[at + CLOCK])
        return found

    def furthest(self, *, but: int) -> int:
        """Return the largest clock of the members but for a slot; 0: there are none.

        The proxy of a node whose last learner has just left may have the clock of nobody.
        """
        clocks = [self.clock(member.slot) for member in self.all() if member.slot != but]
        return max((clock for clock in clocks if clock != NEVER), default=0)

    def strike_if_dead(self, slot: int) -> bool:
        """Return whether the owner of another slot is gone; it is no member then.

        A proxy is for learners that live, whatever becomes of the server.
        """
        at = SLOTS_AT + slot * LINE
        if self._words[at + NODE]:
            return False
        with self._lock:
            if slot in self._own or not self._try(slot, keep=False):
                return False
            self._words[at + MASK] = 0
            _lockf(self._descriptor, _UNLOCK, 1, 8 * at)
        return True

    def strike_dead(self) -> None:
        """Strike off all members that are dead."""
        for _, slot, _ in self.all():
            self.strike_if_dead(slot)

    def _try(self, slot: int, *, keep: bool = True) -> bool:
        """Lock a slot's byte, unless another process has it."""
        with suppress(BlockingIOError, PermissionError):
            _lockf(self._descriptor, _TRY, 1, 8 * (SLOTS_AT + slot * LINE))
            if keep:
                self._own.add(slot)
            return True
        return False
