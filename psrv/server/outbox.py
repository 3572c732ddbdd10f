"""Totals on their way to a home: kept in shared memory until the home has answered.

A connection that ends, or a server that is killed, so loses no push: whoever comes next sends the
same total again, under the same number, and the home takes none in twice.

The file has a line of 8 words for each place (number of the exchange, shard, first block, pushes,
rate as float64, elements), and from the next page on room for a group of blocks each. A place is
filled block by block: which of them belong to the exchange the shard says.
"""

from __future__ import annotations

import mmap
import os
import secrets
import threading
from itertools import count
from pathlib import Path

import torch

from psrv.errors import ServerError
from psrv.shard.format import BLOCK_BYTES, LINE, no_room
from psrv.shard.shard import GROUP
from psrv.transport.base import Frame, Kind

_NUMBER, _SHARD, _BLOCK, _PUSHES, _RATE, _ELEMENTS = range(6)
_ROOM_BYTES = GROUP * BLOCK_BYTES
_NUMBERS = 1 << 35
"""A home keeps a number with its node's, and both have to fit a word."""


class Place:
    """Room for the totals of neighbouring blocks."""

    def __init__(
        self, words: memoryview, reals: memoryview[float], room: torch.Tensor, dtype: torch.dtype
    ) -> None:
        self._words = words
        self._reals = reals
        self._room = room.view(dtype)
        self._bytes: memoryview = room.numpy().data

    def begin(self, frame: Frame) -> None:
        """Keep what is going to be sent, of no blocks as yet."""
        words = self._words
        words[_NUMBER] = 0
        words[_SHARD], words[_BLOCK], words[_PUSHES] = frame.shard, frame.block, frame.pushes
        self._reals[_RATE] = frame.rate
        words[_ELEMENTS] = 0
        words[_NUMBER] = frame.number

    def add(self, total: torch.Tensor) -> None:
        """Keep the next block's total, too."""
        filled = self._words[_ELEMENTS]
        stop = filled + total.numel()
        self._room[filled:stop].copy_(total)
        self._words[_ELEMENTS] = stop

    def clear(self) -> None:
        """Keep nothing."""
        self._words[_NUMBER] = 0

    @property
    def number(self) -> int:
        """The number of the exchange, 0 for none."""
        return self._words[_NUMBER]

    @property
    def frame(self) -> Frame:
        """What is kept."""
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
        """The totals, one after another."""
        return self._room[: self._words[_ELEMENTS]]

    def payload(self, start: int = 0, stop: int | None = None) -> memoryview:
        """Return the bytes of these of its elements; all, if nothing is said."""
        size = self._room.element_size()
        return self._bytes[start * size : size * (self._words[_ELEMENTS] if stop is None else stop)]


class Window:
    """The places of a node's server, for several threads.

    Args:
        path: Of the file; what an earlier server has left there is kept.
        places: How many.
        dtype: Of the totals.

    Raises:
        ServerError: there is no room.
    """

    def __init__(self, path: Path, places: int, dtype: torch.dtype) -> None:
        lines = -(-8 * LINE * places // mmap.PAGESIZE) * mmap.PAGESIZE
        size = lines + places * _ROOM_BYTES
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
            mapping = mmap.mmap(descriptor, size)
        except OSError as error:
            raise no_room(path.parent, size, error) from error
        finally:
            os.close(descriptor)
        words, reals = memoryview(mapping)[:lines].cast("q"), memoryview(mapping)[:lines].cast("d")
        memory = torch.frombuffer(mapping, dtype=torch.uint8)
        self._places = [
            Place(
                words[n * LINE : (n + 1) * LINE],
                reals[n * LINE : (n + 1) * LINE],
                memory[lines + n * _ROOM_BYTES : lines + (n + 1) * _ROOM_BYTES],
                dtype,
            )
            for n in range(places)
        ]
        self._kept = {place.number: place for place in self._places if place.number}
        self._free = [place for place in self._places if not place.number]
        self._changed = threading.Condition()
        # Never one that this node has had before: a server before this one has drawn another begin.
        self._numbers = count(1 + secrets.randbelow(_NUMBERS))

    def next_number(self) -> int:
        """Return a number for an exchange, for whichever relay of this node."""
        return next(self._numbers)

    def begin(self, place: Place, frame: Frame) -> None:
        """Keep an exchange in a place that was taken."""
        place.begin(frame)
        self._kept[frame.number] = place

    def find(self, number: int) -> Place:
        """Return the place that keeps an exchange.

        Raises:
            ServerError: there is none.
        """
        try:
            return self._kept[number]
        except KeyError:
            raise ServerError(f"an exchange on its way ({number:x}) is kept nowhere") from None

    def free_but(self, numbers: set[int]) -> None:
        """Free all places but those of these exchanges, which are on their way."""
        with self._changed:
            for number, place in list(self._kept.items()):
                if number not in numbers:
                    place.clear()
                    del self._kept[number]
            self._free = [place for place in self._places if not place.number]

    def take(self, timeout_s: float) -> Place | None:
        """Return a free place, or None: there is none for so long."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._free, timeout_s):
                return None
            return self._free.pop()  # the last one given back: its memory is in the cache

    def give_back(self, place: Place) -> None:
        """Free a place."""
        with self._changed:
            self._kept.pop(place.number, None)
            place.clear()
            self._free.append(place)
            self._changed.notify()
