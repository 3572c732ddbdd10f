"""Chunks of the global cursor as batches, for learners that don't wait for one another.

    with FileCursor(path, len(dataset), passes=3) as cursor:
        with ChunkLoader(dataset, cursor, samples=256, seed=1) as loader:
            for chunk, inputs, targets in loader:
                ...

`learner.data.sampling.epoch_order` maps the places of a pass to samples; (seed, pass) fixes it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from time import sleep
from typing import Any

from learner.data.prefetch import Batch, Fetcher
from learner.data.sampling import Indices, epoch_order
from learner.errors import UserFault
from psrv.cursor.base import Chunk, chunk_ranges
from psrv.cursor.file import FileCursor
from psrv.errors import PsrvError

_ORDERS = 3
"""Passes whose order is cached: the current one, and earlier ones with chunks of dead learners."""


class ChunkLoader(Fetcher):
    """Takes chunks from a cursor and yields (chunk, inputs, targets).

    A chunk counts as done when the consumer calls `done` or asks for the next one. The next one is
    taken and fetched meanwhile (see learner.data.prefetch): if this learner dies, both are given
    out again. A chunk that was not finished because the consumer left the loop comes first when it
    iterates again.

    Args:
        dataset: Any map-style dataset of (input, …, target).
        cursor: Of as many samples as the dataset has; the loader leaves it open.
        samples: Samples of a chunk, or one more (see psrv.cursor.base); may change between
            chunks.
        seed: With the pass, fixes the order of the samples. The same for all learners.
        batch_samples: Samples of a batch, or one more; None: a chunk is one batch.
        linger_s: Pause between two looks for chunks of learners that died, once all have been given
            out; None ends without them.
        prefetch: `auto`, `on` or `off`; see learner.data.prefetch.Fetcher.
    """

    def __init__(
        self, dataset: Any, cursor: FileCursor, *, samples: int, seed: int,
        batch_samples: int | None = None, linger_s: float | None = None, prefetch: str = "auto",
    ) -> None:  # fmt: skip
        if len(dataset) != cursor.samples:
            raise UserFault(
                f"the dataset has {len(dataset)} samples, but its cursor {cursor.samples}",
                hint="make the cursor with len(dataset)",
            )
        self.samples = samples
        self._batch_samples = batch_samples
        self._cursor = cursor
        self._seed = seed
        self._linger_s = linger_s
        super().__init__(dataset, prefetch)
        self._orders: dict[int, Indices] = {}
        self._taken: deque[tuple[Chunk, list[Any]]] = deque()
        self._current: Chunk | None = None
        """The first chunk taken, once the consumer has it."""

    def indices(self, chunk: Chunk) -> Indices:
        """Return which samples of the dataset a chunk has."""
        order = self._orders.pop(chunk.pass_number, None)
        if order is None:
            order = epoch_order(self._cursor.samples, self._seed, chunk.pass_number)
        self._orders[chunk.pass_number] = order  # the last one is the most recently used
        while len(self._orders) > _ORDERS:
            del self._orders[next(iter(self._orders))]
        return order[chunk.start : chunk.stop]

    def __iter__(self) -> Iterator[tuple[Chunk, tuple[Any, ...], Any]]:
        for chunk, batches in self.chunks():
            for inputs, targets in batches:
                yield chunk, inputs, targets

    def chunks(self) -> Iterator[tuple[Chunk, Iterator[Batch]]]:
        """Yield each chunk with its batches, which are fetched as `__iter__` says."""
        while self._taken or self._take_or_wait():
            chunk, begun = self._taken[0]
            if self.ahead and len(self._taken) == 1:
                self._take(None)
            self._current = chunk
            yield chunk, map(self.get, begun)
            if self._current is not None:
                self._current = None
                self._taken.popleft()
                self._take(chunk)

    def done(self) -> None:
        """Report the consumer's chunk done now, before the training is saved.

        Otherwise the cursor's state would hold that chunk as not done, and the weights that are
        saved with it would be trained on it again.
        """
        if self._current is not None:
            with raise_as_user_fault():
                self._cursor.done(self._current)
            self._current = None
            self._taken.popleft()

    def _take_or_wait(self) -> bool:
        """Take a chunk, also of a dead learner; return whether there is one."""
        while not self._take(None):
            if self._linger_s is None or self._cursor.finished:
                return False
            sleep(self._linger_s)
        return True

    def _take(self, done: Chunk | None) -> bool:
        """Report a chunk done, take another, and begin to fetch it."""
        with raise_as_user_fault():
            chunk = self._cursor.take(self.samples, done)
        if chunk is None:
            return False
        indices = self.indices(chunk)
        size = self._batch_samples or len(indices)
        batches = [indices[start:stop] for start, stop in chunk_ranges(0, len(indices), size)]
        self._taken.append((chunk, [self.begin(batch) for batch in batches]))
        return True


@contextmanager
def raise_as_user_fault() -> Iterator[None]:
    """Raise errors of the cursor and the parameter server as UserFault."""
    try:
        yield
    except PsrvError as error:
        raise UserFault(error.message, hint=error.hint) from error
