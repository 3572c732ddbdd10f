"""Deficit round-robin (Shreedhar and Varghese, 1995) over flows of waiting items. Pure."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable

from search.broker.shapes import Entry, Shape

Fits = Callable[[Shape], bool]
"""Whether the taker has room for a shape."""


class Flow:
    """Items of one origin: those of higher priority first, then those that came first."""

    def __init__(self) -> None:
        self._shapes: dict[Shape, list[tuple[int, int, Entry]]] = {}
        self._count = 0

    def push(self, item: Entry, *, first: bool = False) -> None:
        """Add an item, behind all of its priority or before them."""
        self._count += 1
        order = -self._count if first else self._count
        heap = self._shapes.setdefault(item.shape, [])
        heapq.heappush(heap, (-item.priority, order, item))

    def peek(self, fits: Fits, waits: Callable[[Entry], bool]) -> tuple[Shape, Entry] | None:
        """Return the next item that fits, and its shape, without taking it."""
        best: tuple[int, int, Entry] | None = None
        best_shape: Shape | None = None
        for shape, heap in list(self._shapes.items()):
            while heap and not waits(heap[0][2]):  # taken or withdrawn meanwhile
                heapq.heappop(heap)
            if not heap:
                del self._shapes[shape]
            elif (best is None or heap[0][:2] < best[:2]) and fits(shape):
                best, best_shape = heap[0], shape
        return None if best is None or best_shape is None else (best_shape, best[2])

    def drop(self, shape: Shape) -> None:
        """Remove the item of this shape that `peek` has just returned."""
        heapq.heappop(self._shapes[shape])


class FairQueue:
    """Takes turns between flows, so that each gets the same cost done while it has items.

    Args:
        waits: Says whether an item still waits; others are forgotten when they are met.
    """

    def __init__(self, waits: Callable[[Entry], bool]) -> None:
        self._waits = waits
        self._flows: dict[str, Flow] = {}
        self._turns: deque[str] = deque()
        self._deficits: dict[str, float] = {}
        self._quantum = 1.0
        self._begun = False
        """Whether the first flow has received its quantum of this turn."""

    def push(self, name: str, item: Entry, *, first: bool = False) -> None:
        """Add an item to a flow."""
        flow = self._flows.get(name)
        if flow is None:
            flow = self._flows[name] = Flow()
            self._turns.append(name)
            self._deficits[name] = 0.0
        self._quantum = max(self._quantum, item.cost)
        flow.push(item, first=first)

    def pop(self, fits: Fits) -> Entry | None:
        """Take the next item that fits; None if there is none."""
        without = 0
        while without < len(self._turns):
            name = self._turns[0]
            found = self._flows[name].peek(fits, self._waits)
            if found is None:
                self._deficits[name] = 0.0
                without += 1
            else:
                if not self._begun:
                    self._deficits[name] += self._quantum
                    self._begun = True
                shape, item = found
                if self._deficits[name] >= item.cost:
                    self._deficits[name] -= item.cost
                    self._flows[name].drop(shape)
                    return item
                without = 0
            self._turns.rotate(-1)
            self._begun = False
        return None
