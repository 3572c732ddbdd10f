"""The members of a shard: its slots.

A slot is a line of eight words, and a lock on its first byte that the kernel frees when its owner
dies. A learner's slot stands for its own rank. On a primary the server has further slots, its
proxies for other nodes, each of which stands for all ranks of its node.
"""

from __future__ import annotations

import fcntl
import threading
from contextlib import suppress
from typing import NamedTuple

from psrv.shard.format import LINE, NEVER, SLOTS, SLOTS_AT

MASK, JOINED, UNDO_ROUND, UNDO_ADDED, UNDO_ROWS, CLOCK, NODE = range(1, LINE)
"""Words of a slot, whose first one is only locked: the mask of the ranks that it stands for, 0 if
it is no member; its first round; the progress of the block in its undo copy, and which rows that
copy has; how many pushes its learner has done; the node that it is a proxy for, counted from 1."""
RANKS = 62
"""The bits of a word without its sign."""
_lockf, _UNLOCK = fcntl.lockf, fcntl.LOCK_UN
_TRY = fcntl.LOCK_EX | fcntl.LOCK_NB


class Member(NamedTuple):
    """A slot that has entered."""

    mask: int
    slot: int
    first_round: int


class Membership:
    """The slots of a shard, as one process sees them."""

    def __init__(self, descriptor: int, words: memoryview) -> None:
        self._descriptor = descriptor
        self._words = words
        self._masks = words[SLOTS_AT + MASK : SLOTS_AT + SLOTS * LINE : LINE]
        self._own: set[int] = set()
        self._lock = threading.Lock()

    def take(self) -> int | None:
        """Lock a slot that no living process owns and that is nobody's proxy; None if all are."""
        with self._lock:
            for slot in range(SLOTS):
                at = SLOTS_AT + slot * LINE
                if slot not in self._own and not self._words[at + NODE] and self._try(slot):
                    self._words[at + MASK] = self._words[at + CLOCK] = 0
                    return slot
        return None

    def proxy(self, node: int) -> int | None:
        """Return the proxy slot of a node, which outlives this process.

        A proxy that an earlier server of this primary left is taken over. None if no slot is free.
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
        """Make a slot of this process a member, or change its mask and first round."""
        at = SLOTS_AT + slot * LINE
        self._words[at + JOINED] = first_round
        self._words[at + MASK] = mask

    def pause(self, slot: int) -> None:
        """Take a slot of this process out of the members; the slot is kept."""
        self._words[SLOTS_AT + slot * LINE + MASK] = 0

    def remove(self, slot: int) -> None:
        """Release a slot of this process, or a proxy that a dead server left."""
        at = SLOTS_AT + slot * LINE
        self._words[at + MASK] = 0
        self._words[at + NODE] = 0
        with self._lock:
            self._own.discard(slot)
            _lockf(self._descriptor, _UNLOCK, 1, 8 * at)

    def all(self) -> list[Member]:
        """Return the members that are not known to be dead."""
        words = self._words
        return [
            Member(mask, slot, words[SLOTS_AT + slot * LINE + JOINED])
            for slot, mask in enumerate(self._masks.tolist())
            if mask
        ]

    def ranks(self) -> int:
        """Return the mask of all members' ranks."""
        found = 0
        for mask in self._masks.tolist():
            found |= mask
        return found

    def clock(self, slot: int) -> int:
        """Return how many pushes the learner of a slot has done; for a proxy, the slowest one."""
        return self._words[SLOTS_AT + slot * LINE + CLOCK]

    def set_clock(self, slot: int, pushes: int) -> None:
        """Set the clock of a slot of this process."""
        self._words[SLOTS_AT + slot * LINE + CLOCK] = pushes

    def slowest(self, *, excluding: int | None = None, proxies: bool = True) -> int:
        """Return the smallest clock of the members, or NEVER if there are none.

        Args:
            excluding: A slot to leave out.
            proxies: Whether to include those of other nodes.
        """
        found = NEVER
        for slot, mask in enumerate(self._masks.tolist()):
            at = SLOTS_AT + slot * LINE
            if mask and slot != excluding and (proxies or not self._words[at + NODE]):
                found = min(found, self._words[at + CLOCK])
        return found

    def furthest(self, *, excluding: int) -> int:
        """Return the largest clock of the members, excluding a slot; 0 if there are none.

        The proxy of a node whose last learner has just left may have the clock of nobody.
        """
        clocks = [self.clock(member.slot) for member in self.all() if member.slot != excluding]
        return max((clock for clock in clocks if clock != NEVER), default=0)

    def remove_if_dead(self, slot: int) -> bool:
        """Remove a member if its owner is dead; return whether it was.

        A proxy stays: its node's learners live, whatever becomes of the server.
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

    def remove_dead(self) -> None:
        """Remove all members that are dead."""
        for _, slot, _ in self.all():
            self.remove_if_dead(slot)

    def _try(self, slot: int, *, keep: bool = True) -> bool:
        """Lock a slot's byte, unless another process has it."""
        with suppress(BlockingIOError, PermissionError):
            _lockf(self._descriptor, _TRY, 1, 8 * (SLOTS_AT + slot * LINE))
            if keep:
                self._own.add(slot)
            return True
        return False
