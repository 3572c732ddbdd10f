"""Totals on their way to a primary, kept in shared memory until the primary has answered.

So neither a broken connection nor a killed server loses a push: its successor sends the same total
again, under the same number, and the primary merges no number twice.

The file has a line of 8 words for each entry (number of the exchange, shard, first block, pushes,
rate as float64, elements), and from the next page on space for a group of blocks each. An entry is
filled block by block; the shard says which blocks belong to the exchange.
"""

from __future__ import annotations

import mmap
import secrets
import threading
from itertools import count
from pathlib import Path

import torch

from psrv.errors import ServerError
from psrv.shard.format import BLOCK_BYTES, LINE, map_reserved
from psrv.shard.shard import GROUP
from psrv.transport.base import Frame, Kind

_NUMBER, _SHARD, _BLOCK, _PUSHES, _RATE, _ELEMENTS = range(6)
_ENTRY_BYTES = GROUP * BLOCK_BYTES
_NUMBERS = 1 << 35
"""A primary keeps a number together with the node's in one word."""


class OutboxEntry:
    """One entry: space for the totals of neighbouring blocks."""

    def __init__(
        self, words: memoryview, reals: memoryview[float], memory: torch.Tensor, dtype: torch.dtype
    ) -> None:
        self._words = words
        self._reals = reals
        self._memory = memory.view(dtype)
        self._bytes: memoryview = memory.numpy().data

    def begin(self, frame: Frame) -> None:
        """Begin an exchange; it has no blocks yet."""
        words = self._words
        words[_NUMBER] = 0
        words[_SHARD], words[_BLOCK], words[_PUSHES] = frame.shard, frame.block, frame.pushes
        self._reals[_RATE] = frame.rate
        words[_ELEMENTS] = 0
        words[_NUMBER] = frame.number

    def add(self, total: torch.Tensor) -> None:
        """Append the next block's total."""
        filled = self._words[_ELEMENTS]
        stop = filled + total.numel()
        self._memory[filled:stop].copy_(total)
        self._words[_ELEMENTS] = stop

    def clear(self) -> None:
        """Free the entry."""
        self._words[_NUMBER] = 0

    @property
    def number(self) -> int:
        """The number of the exchange, 0 if the entry is free."""
        return self._words[_NUMBER]

    @property
    def frame(self) -> Frame:
        """The header of the exchange."""
        return Frame(
            Kind.TOTAL,
            shard=self._words[_SHARD],
            block=self._words[_BLOCK],
            number=self._words[_NUMBER],
            pushes=self._words[_PUSHES],
            rate=self._reals[_RATE],
        )

    @property
    def total(self) -> torch.Tensor:
        """The totals of its blocks, one after another."""
        return self._memory[: self._words[_ELEMENTS]]

    def payload(self, start: int = 0, stop: int | None = None) -> memoryview:
        """Return the bytes of elements start … stop - 1; of all by default."""
        size = self._memory.element_size()
        return self._bytes[start * size : size * (self._words[_ELEMENTS] if stop is None else stop)]


class Outbox:
    """The outbox of a node's server; thread-safe.

    Args:
        path: The file; entries that an earlier server left there are kept.
        entries: How many.
        dtype: The totals'.

    Raises:
        ServerError: There is not enough shared memory.
    """

    def __init__(self, path: Path, entries: int, dtype: torch.dtype) -> None:
        lines = -(-8 * LINE * entries // mmap.PAGESIZE) * mmap.PAGESIZE
        mapping = map_reserved(path, lines + entries * _ENTRY_BYTES)
        words, reals = memoryview(mapping)[:lines].cast("q"), memoryview(mapping)[:lines].cast("d")
        memory = torch.frombuffer(mapping, dtype=torch.uint8)
        self._entries = [
            OutboxEntry(
                words[n * LINE : (n + 1) * LINE],
                reals[n * LINE : (n + 1) * LINE],
                memory[lines + n * _ENTRY_BYTES : lines + (n + 1) * _ENTRY_BYTES],
                dtype,
            )
            for n in range(entries)
        ]
        self._kept = {entry.number: entry for entry in self._entries if entry.number}
        self._free = [entry for entry in self._entries if not entry.number]
        self._changed = threading.Condition()
        # Never a number that this node used before: an earlier server began at another random
        # number.
        self._numbers = count(1 + secrets.randbelow(_NUMBERS))

    def next_number(self) -> int:
        """Return the number of a new exchange, unique among all forwarders of this node."""
        return next(self._numbers)

    def begin(self, entry: OutboxEntry, frame: Frame) -> None:
        """Keep an exchange in an entry that was taken."""
        entry.begin(frame)
        self._kept[frame.number] = entry

    def find(self, number: int) -> OutboxEntry:
        """Return the entry that keeps an exchange.

        Raises:
            ServerError: There is none.
        """
        try:
            return self._kept[number]
        except KeyError:
            raise ServerError(f"the outbox does not have the exchange {number:x}") from None

    def keep_only(self, numbers: set[int]) -> None:
        """Free all entries except those of these exchanges, which are still unanswered."""
        with self._changed:
            for number, entry in list(self._kept.items()):
                if number not in numbers:
                    entry.clear()
                    del self._kept[number]
            self._free = [entry for entry in self._entries if not entry.number]

    def take(self, timeout_s: float) -> OutboxEntry | None:
        """Return a free entry; None if there is none within the time limit."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._free, timeout_s):
                return None
            return self._free.pop()  # last in, first out: its memory is still in the cache

    def release(self, entry: OutboxEntry) -> None:
        """Free an entry."""
        with self._changed:
            self._kept.pop(entry.number, None)
            entry.clear()
            self._free.append(entry)
            self._changed.notify()
