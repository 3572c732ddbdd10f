"""How samples are cut into parts, one after another: passes into chunks, chunks into batches.

All parts have the same size but the last, and a last one of a single sample joins the part before
it: batch norm can't be trained on one sample alone. Only parts that are meant to have one have it.
"""

from __future__ import annotations

from collections.abc import Iterator


def first_part(count: int, size: int) -> int:
    """Return how many of `count` samples are in the first part."""
    return count if count <= size + (size > 1) else size


def part_count(count: int, size: int) -> int:
    """Return how many parts there are."""
    return -(-(count - (size > 1 and count > 1)) // size)


def parts(start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield each part of start … stop - 1, as its own (start, stop)."""
    while start < stop:
        end = start + first_part(stop - start, size)
        yield start, end
        start = end
