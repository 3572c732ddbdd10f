"""The exchange of one node: sums in shared memory, in place; each learner sums a part.

A learner's values lie in memory that all learners of the node have mapped. Each adds up its part of
all rows and writes the sum back into every row while it is still in the cache: nothing is copied in
or out, and every byte crosses the memory bus once each way.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import torch
from numpy.typing import NDArray

from learner.exchange.arithmetic import blocks, part_of, sum_into_all
from learner.exchange.base import Buffer, Group, GroupedExchange
from learner.exchange.memory import NodeMemory, fence
from learner.exchange.pipeline import wait_until

_CUTS_KEPT = 1024
_FLAG_BYTES = 64
"""A cache line for each learner's counters: no false sharing."""


class Counters:
    """Two counters for each learner of a node, which all of them can read."""

    def __init__(self, group: Group) -> None:
        local_size = group.topology.local_size
        memory = NodeMemory(group, [_FLAG_BYTES] * local_size)
        rows = [region.view(torch.int64).numpy() for region in memory.regions]
        self._mine = rows[group.topology.local_rank]
        self._rows: list[NDArray[np.int64]] = rows

    def set(self, which: int, value: int) -> None:
        """Set a counter of this learner, after everything it has written before."""
        fence()
        self._mine[which] = value

    def reached(self, which: int, value: int) -> bool:
        """Return whether this counter of every learner is at least `value`."""
        for row in self._rows:
            if row[which] < value:
                return False
        fence()
        return True


READY, DONE = 0, 1


class ShmBuffer:
    """A Buffer in the node's shared memory."""

    def __init__(self, group: Group, count: int, dtype: torch.dtype) -> None:
        topology = group.topology
        self._index, self._parts_count = topology.local_rank, topology.local_size
        size_bytes = count * dtype.itemsize
        memory = NodeMemory(group, [size_bytes] * topology.local_size)
        self._rows = [region.view(dtype) for region in memory.regions]
        self.values = self._rows[self._index]
        self._counters = Counters(group)
        self._parts: deque[tuple[int, int, int]] = deque()
        """(start, stop, divisor) of what was begun and not yet summed by this learner."""
        self._begun = 0
        self._cut: dict[tuple[int, int], list[tuple[torch.Tensor, ...]]] = {}

    def begin(self, start: int, stop: int, divisor: int = 1) -> None:
        """Announce that a part of this learner's row is ready."""
        self._parts.append((start, stop, divisor))
        self._begun += 1
        self._counters.set(READY, self._begun)

    def progress(self) -> None:
        """Sum this learner's share of every part that all learners have begun."""
        while self._parts and self._next_is_ready():
            start, stop, divisor = self._parts.popleft()
            for rows in self._blocks(start, stop):
                sum_into_all(rows, divisor)
            self._counters.set(DONE, self._begun - len(self._parts))

    def wait(self) -> None:
        """Sum everything that was begun, and wait until the others have, too."""
        while self._parts:
            wait_until(self._next_is_ready)
            self.progress()
        wait_until(lambda: self._counters.reached(DONE, self._begun))

    def free(self) -> None:
        """Drop the mapping; the last learner's drop frees the memory."""
        self._cut.clear()
        self._rows, self.values = [], self.values[:0].clone()

    def _next_is_ready(self) -> bool:
        return self._counters.reached(READY, self._begun - len(self._parts) + 1)

    def _blocks(self, start: int, stop: int) -> list[tuple[torch.Tensor, ...]]:
        """Return this learner's share of a part: for each block the rows of all learners."""
        known = self._cut.get((start, stop))
        if known is None:
            if len(self._cut) >= _CUTS_KEPT:
                self._cut.clear()
            mine = part_of(start, stop, self._index, self._parts_count)
            known = [tuple(row[a:b] for row in self._rows) for a, b in blocks(*mine)]
            self._cut[(start, stop)] = known
        return known


class ShmExchange(GroupedExchange[Group]):
    """An Exchange of the learners of one node."""

    name = "shm"

    def buffer(self, count: int, dtype: torch.dtype, device: torch.device | None = None) -> Buffer:
        """Return a buffer of `count` zeros in shared memory; for a GPU see the exchange `torch`."""
        self._refuse_gpus(device)
        return ShmBuffer(self.group, count, dtype)

    def shared(self, count: int, dtype: torch.dtype) -> torch.Tensor | None:
        """Return zeros, one copy for all learners of the node."""
        return shared_zeros(self.group, count, dtype)


def shared_zeros(group: Group, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Return zeros of shape (count,), one copy for all learners of the node."""
    sizes = [0] * group.topology.local_size
    sizes[0] = count * dtype.itemsize
    return NodeMemory(group, sizes).regions[0].view(dtype)
