"""The global cursor: learners take exclusive chunks of each pass over the samples.

Each learner takes as many samples as it can use, so that a slow one takes fewer. A position counts
samples over all passes: position = pass number x samples of the data set + place in the pass.
The cursor does not decide which sample a place stands for (see learner.chunks). Its implementation
for independent processes is psrv.cursor.file; learner.parameter_server.ordered_cursor hands chunks
out in rank order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from psrv.errors import PsrvError

if TYPE_CHECKING:
    from typing import TypeAlias


VERSION = 1


class CursorError(PsrvError):
    """The cursor can't do what it was asked to do."""


class Chunk(NamedTuple):
    """Places start … stop - 1 of one pass, which belong to one learner."""

    pass_number: int
    """From 0."""
    start: int
    stop: int

    @property
    def samples(self) -> int:
        """Return how many samples the chunk has."""
        return self.stop - self.start


Range: TypeAlias = "tuple[int, int]"
"""Positions (start, stop), of one pass."""


@dataclass(frozen=True)
class CursorState:
    """The progress of the passes: everything before `next` is done except the ranges `undone`."""

    samples: int
    passes: int
    next: int
    undone: tuple[Range, ...] = ()
    """Sorted; none overlaps another, spans two passes, or goes beyond `next`."""

    def to_dict(self) -> dict[str, Any]:
        """Return the state as a checkpoint keeps it."""
        undone = [list(part) for part in self.undone]
        return {"version": VERSION, "samples": self.samples, "passes": self.passes,
                "next": self.next, "undone": undone}  # fmt: skip

    @property
    def done_samples(self) -> int:
        """Return how many samples were done, over all passes."""
        return self.next - sum(stop - start for start, stop in self.undone)


def make_state(samples: int, passes: int, next_: int, undone: Iterable[Range]) -> CursorState:
    """Return the state with its ranges sorted and joined where they touch within a pass."""
    joined: list[Range] = []
    for start, stop in sorted(undone):
        if joined and joined[-1][1] == start and start % samples:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return CursorState(samples, passes, min(next_, samples * passes), tuple(joined))


def read_state(state: Mapping[str, Any], samples: int, passes: int) -> CursorState:
    """Return a checkpoint's state, checked against the cursor that continues from it.

    The number of passes may differ, as long as the state is not beyond it.
    """
    hint = "restore a checkpoint of this training, or start a new one"
    try:
        version, next_ = int(state["version"]), int(state["next"])
        of_samples = int(state["samples"])
        undone = [(int(start), int(stop)) for start, stop in state["undone"]]
    except (KeyError, TypeError, ValueError) as error:
        raise CursorError(f"a cursor's state can't be read: {error!r}", hint=hint) from error
    if version != VERSION:
        raise CursorError(f"a cursor's state has the version {version}, not {VERSION}", hint=hint)
    if of_samples != samples:
        raise CursorError(
            f"a cursor's state is of {of_samples} samples, but the data set has {samples}",
            hint=hint,
        )
    if not 0 <= next_ <= samples * passes:
        raise CursorError(
            f"a cursor's state is at position {next_}, but {passes} passes over {samples} samples "
            f"end at {samples * passes}", hint=hint,
        )  # fmt: skip
    return make_state(samples, passes, next_, _checked(undone, samples, next_, hint))


def _checked(undone: list[Range], samples: int, next_: int, hint: str) -> list[Range]:
    before = 0
    for start, stop in sorted(undone):
        if not before <= start < stop <= next_ or start // samples != (stop - 1) // samples:
            raise CursorError(f"a cursor's state has a wrong range, {start} to {stop}", hint=hint)
        before = stop
    return undone


def check_size(samples: int, passes: int) -> None:
    """Refuse a data set without samples and a training without passes."""
    if samples < 1 or passes < 1:
        raise CursorError(f"there is nothing to take from {samples} samples in {passes} passes",
                          hint="give a data set with samples, and at least one pass")  # fmt: skip
    if samples * passes >= 2**62:
        raise CursorError(f"{passes} passes over {samples} samples are more than can be counted")


def check_taken(samples: int) -> None:
    """Refuse a chunk without samples."""
    if samples < 1:
        raise CursorError(f"a chunk of {samples} samples was asked for",
                          hint="take at least one sample")  # fmt: skip


def not_held(chunk: Chunk) -> CursorError:
    """Return the error for a chunk that is reported done by a learner that does not hold it."""
    return CursorError(
        f"{chunk} is not held by this learner",
        hint="report each chunk done once, by the learner that took it",
    )


# How passes are cut into chunks, and chunks into batches. All have the same size but the last, and
# a last one of a single sample is merged into the one before: batch norm can't be trained on one
# sample alone. Only if the size is 1 do chunks of one sample exist.


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
