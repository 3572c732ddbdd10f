"""Pushes in one pass over memory, by a few functions in C, where a node has a compiler for them.

torch takes three passes for a push with its pull: the copy for undoing, the step, and the learner's
own copy. Measured on blocks of 256 KiB (native.c called for each, two processes, 102 MB each): 1.4
times as many updates a second (docs/benchmarks.md). psrv.solvers.native_build says where the
functions come from; their results have the bits of torch's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from psrv.shard.format import BLOCK_BYTES, COUNT, HOME
from psrv.shard.shard import Operation, Shard
from psrv.solvers import native_build
from psrv.solvers.native_build import LIBRARY, Library, load
from psrv.solvers.solver import Downpour, ElasticAveraging, ParallelSGD

_CACHED_BYTES = 8 * 2**20
"""Less than this the caches may still have when a learner reads its new weights; more is stored
past them. (A gradient written, pushed, and the weights read, two learners, ms with and without:
0.74 and 0.70 for 4 MiB, 2.3 and 2.7 for 8, 21.3 and 24.9 for 64.)"""


class Fused(ABC):
    """Pushes of a solver on the blocks of a shard.

    They copy for undoing themselves: `Rows.copied` is to be false, and nothing else in an operation
    may change rows. All are addresses: a tensor for each block is memory, too, which has left the
    caches when it is needed again (Python took 2.3 to 2.6 ms of a push of 102 MB with them, 1.5 to
    2.0 without).
    """

    def __init__(self, library: Library, shard: Shard) -> None:
        self._library = library
        self._row, self._other = _two(shard.rows)
        self._aside, self._other_aside = _two(shard.asides)
        self._is_home = shard.layout.kind == HOME
        self._lengths = shard.lengths
        self._kept = shard.kept_address
        self._progress = shard.progress

    @abstractmethod
    def push(
        self, block: int, mine: int, into: int, rate: float, *, past_caches: bool = False
    ) -> None:
        """Take in a block of what a learner sends, at home; undone if this process is killed in it.

        Args:
            block: Its number.
            mine: The address of what is sent.
            into: The address of what gets the new weights; 0: nobody wants them.
            rate: The learning rate.
            past_caches: Whether those are not read soon.
        """

    @abstractmethod
    def gather(self, block: int, mine: int, into: int, *, past_caches: bool = False) -> None:
        """Take it in where another node is the home; `into` gets the replica."""

    def pushing(
        self,
        mine: torch.Tensor,
        into: torch.Tensor | None,
        rate: float,
        *,
        past_caches: bool = False,
    ) -> Operation | None:
        """Return the operation of a learner's push; None: of such tensors it can't be.

        Args:
            mine: What it sends, for the whole shard.
            into: Gets the new weights; None: nobody wants them.
            rate: The learning rate.
            past_caches: See `push`.
        """
        if not all(tensor is None or is_plain(tensor) for tensor in (mine, into)):
            return None
        sent, taken = mine.data_ptr(), 0 if into is None else into.data_ptr()
        push, gather, is_home = self.push, self.gather, self._is_home

        def work(_: Sequence[torch.Tensor], block: int) -> None:
            at = block * BLOCK_BYTES
            if is_home:
                push(block, sent + at, taken and taken + at, rate, past_caches=past_caches)
            else:
                gather(block, sent + at, taken and taken + at, past_caches=past_caches)

        return work

    def _is_empty(self, block: int) -> bool:
        """Return whether nothing is in the total of a relay."""
        return not self._progress(block)[1] & COUNT


class FusedDownpour(Fused):
    """Of `Downpour`."""

    def __init__(self, library: Library, shard: Shard, solver: Downpour) -> None:
        super().__init__(library, shard)
        self._scale, self._momentum = solver.scale, solver.momentum

    def push(
        self, block: int, mine: int, into: int, rate: float, *, past_caches: bool = False
    ) -> None:
        """Take a step."""
        at = block * BLOCK_BYTES
        velocity = self._other + at if self._momentum else 0
        self._library.downpour(
            self._row + at, velocity, mine, into, self._aside,
            self._other_aside, self._kept(block), self._lengths[block], rate * self._scale,
            self._momentum, past_caches,
        )  # fmt: skip

    def gather(self, block: int, mine: int, into: int, *, past_caches: bool = False) -> None:
        """Add to the total."""
        at = block * BLOCK_BYTES
        self._library.gather(
            self._other + at, self._row + at, mine, into, self._other_aside, self._kept(block),
            self._lengths[block], self._is_empty(block), past_caches,
        )  # fmt: skip


class FusedRounds:
    """Of `ParallelSGD`, whose learners add to a sum in turn; the last one takes the step, too.

    As `Fused` has it, they copy for undoing themselves.
    """

    def __init__(self, library: Library, shard: Shard, solver: ParallelSGD) -> None:
        self._library = library
        self._rows = [row.data_ptr() for row in shard.rows]
        self._asides = [aside.data_ptr() for aside in shard.asides]
        self._momentum = solver.momentum
        self._lengths = shard.lengths
        self._kept = shard.kept_address

    def add(self, block: int, mine: int, first: bool) -> None:
        """Add to the sum of a block, which means nothing before the first one has.

        Args:
            block: Its number.
            mine: The address of what is added.
            first: Whether nobody has added before.
        """
        self._library.gather(
            self._rows[-1] + block * BLOCK_BYTES, 0, mine, 0, self._asides[-1], self._kept(block),
            self._lengths[block], first, False,
        )  # fmt: skip

    def add_last(self, block: int, mine: int, first: bool, learners: int, rate: float) -> None:
        """Take the step for the sum and this; the sum itself stays as it was.

        Args:
            block: Its number.
            mine: The address of what would be added.
            first: Whether nobody has added before.
            learners: How many the sum then is of.
            rate: The learning rate.
        """
        at = block * BLOCK_BYTES
        velocity, aside = (self._rows[1] + at, self._asides[1]) if self._momentum else (0, 0)
        self._library.mean_step(
            self._rows[0] + at, velocity, self._rows[-1] + at, mine, self._asides[0], aside,
            self._kept(block), self._lengths[block], first, learners, rate, self._momentum,
        )  # fmt: skip


class FusedElastic(Fused):
    """Of `ElasticAveraging`, which changes what is sent, and has no other answer."""

    def __init__(self, library: Library, shard: Shard, solver: ElasticAveraging) -> None:
        super().__init__(library, shard)
        self._alpha = solver.alpha

    def push(
        self, block: int, mine: int, into: int, rate: float, *, past_caches: bool = False
    ) -> None:
        """Draw both to each other."""
        del into, rate, past_caches
        self._library.elastic(
            self._row + block * BLOCK_BYTES, 0, mine, self._aside, 0, self._kept(block),
            self._lengths[block], self._alpha, 0,
        )  # fmt: skip

    def gather(self, block: int, mine: int, into: int, *, past_caches: bool = False) -> None:
        """Draw the replica and a learner to each other, and note by how much."""
        del into, past_caches
        at = block * BLOCK_BYTES
        self._library.elastic(
            self._row + at, self._other + at, mine, self._aside, self._other_aside,
            self._kept(block), self._lengths[block], self._alpha, self._is_empty(block),
        )  # fmt: skip


_FUSED: dict[type, Callable[..., Fused]] = {
    Downpour: FusedDownpour,
    ElasticAveraging: FusedElastic,
}
"""By exact types: a solver that is derived from them may do something else."""


def build(folder: Path, solver: object) -> str | None:
    """Compile what there is for a solver, for all who work on the shards in a folder.

    Returns:
        A line for the log; None: there is nothing for this solver, or it has been done.
    """
    if type(solver) not in {*_FUSED, ParallelSGD}:
        return None
    return native_build.build(folder)


def past_caches(size_bytes: int) -> bool:
    """Return whether weights of this size, of all shards together, are stored past the caches."""
    return size_bytes >= _CACHED_BYTES


def _two(rows: Sequence[torch.Tensor]) -> tuple[int, int]:
    """Return the addresses of the first two."""
    return rows[0].data_ptr(), rows[1].data_ptr() if len(rows) > 1 else 0


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether C can take a tensor as an array of float32."""
    return tensor.dtype == torch.float32 and tensor.is_contiguous()


def fused_for(shard: Shard, solver: object) -> Fused | None:
    """Return what works on a shard in one pass, at once; None: torch does."""
    make = _FUSED.get(type(solver))
    library = None if make is None else _library_of(shard)
    return None if make is None or library is None else make(library, shard, solver)


def fused_rounds_for(shard: Shard, solver: object) -> FusedRounds | None:
    """Return what does so in rounds; None: torch does."""
    if type(solver) is not ParallelSGD:
        return None
    library = _library_of(shard)
    return None if library is None else FusedRounds(library, shard, solver)


def _library_of(shard: Shard) -> Library | None:
    if any(dtype != torch.float32 for dtype in shard.layout.dtypes):
        return None
    return load(shard.path.with_name(LIBRARY))
