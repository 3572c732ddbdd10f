"""Pushes in one pass over memory, by functions in C, where a node has a compiler for them.

torch takes three passes for a push with its pull: the undo copy, the step, and the learner's own
copy. Measured on blocks of 256 KiB (native.c called for each, two processes, 102 MB each): 1.4
times as many updates a second (docs/benchmarks.md). psrv.solvers.native_build compiles the
functions; their results have the same bits as torch's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from psrv.shard.format import BLOCK_BYTES, COUNT, PRIMARY
from psrv.shard.shard import Operation, Shard
from psrv.solvers import native_build
from psrv.solvers.native_build import LIBRARY, Library, load
from psrv.solvers.solver import Downpour, ElasticAveraging, ParallelSGD

_CACHED_BYTES = 8 * 2**20
"""Weights smaller than this may still be in the caches when a learner reads them; larger ones are
stored past the caches. (A gradient written, pushed, and the weights read, two learners, ms with and
without: 0.74 and 0.70 for 4 MiB, 2.3 and 2.7 for 8, 21.3 and 24.9 for 64.)"""


class NativePush(ABC):
    """Native pushes of a solver to the blocks of a shard.

    They make the undo copies themselves: `Rows.copied` has to be false, and nothing else in an
    operation may change rows. All arguments are addresses: a tensor for each block is memory, too,
    and has left the caches when it is needed again (Python took 2.3 to 2.6 ms of a push of 102 MB
    with them, 1.5 to 2.0 without).
    """

    past_caches = False
    """Whether new weights are stored past the caches."""

    def __init__(self, library: Library, shard: Shard) -> None:
        self._library = library
        self._row, self._other = _two(shard.rows)
        self._undo, self._other_undo = _two(shard.undo_copies)
        self._is_primary = shard.layout.kind == PRIMARY
        self._lengths = shard.lengths
        self._kept = shard.copied_address
        self._progress = shard.progress
        self._shard = shard

    @abstractmethod
    def push(self, block: int, mine: int, into: int, rate: float) -> None:
        """Apply a block of what a learner sends, on a primary; a kill during the push undoes it.

        Args:
            block: Its number.
            mine: The address of what is sent.
            into: The address that gets the new weights; 0 if nobody wants them.
            rate: The learning rate.
        """

    @abstractmethod
    def gather(self, block: int, mine: int, into: int) -> None:
        """Gather a block of what a learner sends, on a replica; `into` gets its weights."""

    def pushing(self, mine: Tensor, into: Tensor | None, rate: float) -> Operation | None:
        """Return the operation of a learner's push; None if the tensors don't allow a native one.

        Args:
            mine: What the learner sends, for the whole shard.
            into: Gets the new weights; None if nobody wants them.
            rate: The learning rate.
        """
        if not all(tensor is None or is_plain(tensor) for tensor in (mine, into)):
            return None
        sent, taken = mine.data_ptr(), 0 if into is None else into.data_ptr()
        push, gather, is_primary = self.push, self.gather, self._is_primary
        count = self._shard.count_push

        def work(_: Sequence[Tensor], block: int) -> None:
            at = block * BLOCK_BYTES
            if is_primary:
                push(block, sent + at, taken and taken + at, rate)
            else:
                gather(block, sent + at, taken and taken + at)
            count(block)

        return work

    def _is_empty(self, block: int) -> bool:
        """Return whether the total of a replica is empty."""
        return not self._progress(block)[1] & COUNT


class NativeDownpour(NativePush):
    """Native pushes of `Downpour`."""

    def __init__(self, library: Library, shard: Shard, solver: Downpour) -> None:
        super().__init__(library, shard)
        self._scale, self._momentum = solver.scale, solver.momentum

    def push(self, block: int, mine: int, into: int, rate: float) -> None:
        """Take a step."""
        at = block * BLOCK_BYTES
        velocity = self._other + at if self._momentum else 0
        self._library.downpour(
            self._row + at, velocity, mine, into, self._undo,
            self._other_undo, self._kept(block), self._lengths[block], rate * self._scale,
            self._momentum, self.past_caches,
        )  # fmt: skip

    def gather(self, block: int, mine: int, into: int) -> None:
        """Add to the total."""
        at = block * BLOCK_BYTES
        self._library.gather(
            self._other + at, self._row + at, mine, into, self._other_undo, self._kept(block),
            self._lengths[block], self._is_empty(block), self.past_caches,
        )  # fmt: skip


class NativeRounds:
    """Native rounds of `ParallelSGD`: learners add to a sum in turn; the last one takes the step.

    Like `NativePush`, these functions make the undo copies themselves.
    """

    def __init__(self, library: Library, shard: Shard, solver: ParallelSGD) -> None:
        self._library = library
        self._rows = [row.data_ptr() for row in shard.rows]
        self._undo = [aside.data_ptr() for aside in shard.undo_copies]
        self._momentum = solver.momentum
        self._lengths = shard.lengths
        self._kept = shard.copied_address

    def add(self, block: int, mine: int, first: bool) -> None:
        """Add to the sum of a block, which means nothing before the first addition.

        Args:
            block: Its number.
            mine: The address of what is added.
            first: Whether nobody has added before.
        """
        self._library.gather(
            self._rows[-1] + block * BLOCK_BYTES, 0, mine, 0, self._undo[-1], self._kept(block),
            self._lengths[block], first, False,
        )  # fmt: skip

    def add_last(self, block: int, mine: int, first: bool, learners: int, rate: float) -> None:
        """Take the step for the sum plus these values; the sum itself stays as it was.

        Args:
            block: Its number.
            mine: The address of the values.
            first: Whether nobody has added before.
            learners: How many learners' values that is.
            rate: The learning rate.
        """
        at = block * BLOCK_BYTES
        velocity, aside = (self._rows[1] + at, self._undo[1]) if self._momentum else (0, 0)
        self._library.mean_step(
            self._rows[0] + at, velocity, self._rows[-1] + at, mine, self._undo[0], aside,
            self._kept(block), self._lengths[block], first, learners, rate, self._momentum,
        )  # fmt: skip


class NativeElastic(NativePush):
    """Native pushes of `ElasticAveraging`, which changes what is sent and has no other answer."""

    def __init__(self, library: Library, shard: Shard, solver: ElasticAveraging) -> None:
        super().__init__(library, shard)
        self._alpha = solver.alpha

    def push(self, block: int, mine: int, into: int, rate: float) -> None:
        """Move the center and the learner's weights towards each other."""
        del into, rate
        self._library.elastic(
            self._row + block * BLOCK_BYTES, 0, mine, self._undo, 0, self._kept(block),
            self._lengths[block], self._alpha, 0,
        )  # fmt: skip

    def gather(self, block: int, mine: int, into: int) -> None:
        """Move the replica and the learner's weights towards each other; total the difference."""
        del into
        at = block * BLOCK_BYTES
        self._library.elastic(
            self._row + at, self._other + at, mine, self._undo, self._other_undo,
            self._kept(block), self._lengths[block], self._alpha, self._is_empty(block),
        )  # fmt: skip


_NATIVE: dict[type, Callable[..., NativePush]] = {
    Downpour: NativeDownpour,
    ElasticAveraging: NativeElastic,
}
"""By exact type: a derived solver may behave differently."""


def build(folder: Path, solver: object) -> str | None:
    """Compile the functions for a solver, for all processes that use the shards in a folder.

    Returns:
        A line for the log; None if this solver has no native functions, or they were compiled
        before.
    """
    if type(solver) not in {*_NATIVE, ParallelSGD}:
        return None
    return native_build.build(folder)


def past_caches(size_bytes: int) -> bool:
    """Return whether weights of this size, over all shards, are stored past the caches."""
    return size_bytes >= _CACHED_BYTES


def _two(rows: Sequence[Tensor]) -> tuple[int, int]:
    """Return the addresses of the first two rows; 0 if there is no second."""
    return rows[0].data_ptr(), rows[1].data_ptr() if len(rows) > 1 else 0


def is_plain(tensor: Tensor) -> bool:
    """Return whether C can take a tensor as an array of float32."""
    return tensor.dtype == torch.float32 and tensor.is_contiguous()


def native_push_for(shard: Shard, solver: object) -> NativePush | None:
    """Return the native pushes for a shard; None if torch does the work."""
    make = _NATIVE.get(type(solver))
    library = None if make is None else _library_of(shard)
    return None if make is None or library is None else make(library, shard, solver)


def native_rounds_for(shard: Shard, solver: object) -> NativeRounds | None:
    """Return the native rounds for a shard; None if torch does the work."""
    if type(solver) is not ParallelSGD:
        return None
    library = _library_of(shard)
    return None if library is None else NativeRounds(library, shard, solver)


def _library_of(shard: Shard) -> Library | None:
    if any(dtype != torch.float32 for dtype in shard.layout.dtypes):
        return None
    return load(shard.path.with_name(LIBRARY))
