"""Chunking: how passes are cut into chunks, and chunks into batches.

All have the same size but the last, and a last one of a single sample is merged into the one
before: batch norm can't be trained on one sample alone. Only if the size is 1 do chunks of one
sample exist.
"""

from __future__ import annotations

from collections.abc import Iterator


def first_chunk(count: int, size: int) -> int:
    """Return how many of `count` samples are in the first chunk."""
    return count if count <= size + (size > 1) else size


def chunk_count(count: int, size: int) -> int:
    """Return the number of chunks."""
    return -(-(count - (size > 1 and count > 1)) // size)


def chunk_ranges(start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the (start, stop) of each chunk of start … stop - 1."""
    while start < stop:
        end = start + first_chunk(stop - start, size)
        yield start, end
        start = end
