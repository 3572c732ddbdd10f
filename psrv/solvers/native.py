"""Pushes in one pass over memory, by functions in C, where a node has a compiler for them.

torch takes three passes for a push with its pull: the undo copy, the step, and the learner's own
copy (7.8 instead of 15.6 ms of processor time for 40 MB: docs/benchmarks.md). The server compiles
the functions for its own processor before it makes shards; learners load what they find beside
those. Loading checks that the results have the same bits as torch's. If anything fails, torch does
the work.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from dlctl.contract.ground.processes import end_child
from psrv.shard.format import BLOCK_BYTES, COUNT, PRIMARY, UNFINISHED
from psrv.shard.private_folder import is_private_folder
from psrv.shard.shard import Operation, Shard
from psrv.solvers import update_rules
from psrv.solvers.solver import Downpour, ElasticAveraging, ParallelSGD

LIBRARY = "native.so"
SOURCE = Path(__file__).with_name("native.c")
_COMPILERS = "cc", "gcc", "clang"
_FLAGS = (
    "-O3", "-march=native", "-ffp-contract=off", "-ffreestanding", "-fPIC", "-shared", "-nostdlib",
    "-pipe",
)  # fmt: skip
"""Neither headers nor libraries are needed, except the compiler's own: those of C are often absent
where programs are not built."""
_COMPILER_TIMEOUT_S = 20
_CACHED_BYTES = 8 * 2**20
"""Weights smaller than this may still be in the caches when a learner reads them; larger ones are
stored past the caches. (A gradient written, pushed, and the weights read, two learners, ms with and
without: 0.74 and 0.70 for 4 MiB, 2.3 and 2.7 for 8, 21.3 and 24.9 for 64.)"""
_SOLVERS = Downpour, ElasticAveraging, ParallelSGD
"""By exact type: a derived solver may behave differently."""
_address, _size, _real, _flag = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_float, ctypes.c_int
_ARGUMENTS = {
    "dlctl_step": [_address] * 8 + [_size, _real, _real, _real, _flag],
    "dlctl_gather": [_address] * 6 + [_size, _flag, _flag],
    "dlctl_elastic": [_address] * 6 + [_size, _real, _flag],
}
_CHECKED_ELEMENTS = 208
"""Some whole chunks and a rest; and whole cache lines."""


class Native:
    """A solver's pushes to the blocks of a shard, in C.

    They make the undo copies themselves: `Rows.copied` has to be false, and nothing else in an
    operation may change rows. All arguments are addresses: a tensor for each block is memory, too,
    and has left the caches when it is needed again (Python took 2.3 to 2.6 ms of a push of 102 MB
    with them, 1.5 to 2.0 without).
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        shard: Shard,
        solver: Downpour | ElasticAveraging | ParallelSGD,
        past_caches: bool,
    ) -> None:
        self._library = library
        self._shard = shard
        self._rows = [row.data_ptr() for row in shard.rows]
        self._other = self._rows[1] if len(self._rows) > 1 else 0
        self._undo = [copy.data_ptr() for copy in shard.undo_copies]
        self._other_undo = self._undo[1] if self._other else 0
        self._steps = shard.layout.kind == PRIMARY
        self._alpha = solver.alpha if isinstance(solver, ElasticAveraging) else None
        self._momentum = 0.0 if isinstance(solver, ElasticAveraging) else solver.momentum
        self._scale = solver.scale if isinstance(solver, Downpour) else 1.0
        self._past_caches = past_caches

    def pushing(self, mine: Tensor, into: Tensor | None, rate: float) -> Operation:
        """Return the operation of a learner's push of values for the whole shard; see `push`."""
        sent, taken = mine.data_ptr(), 0 if into is None else into.data_ptr()

        def work(_: Sequence[Tensor], block: int) -> None:
            at = block * BLOCK_BYTES
            self.push(block, sent + at, taken and taken + at, rate)
            self._shard.count_push(block)

        return work

    def push(self, block: int, mine: int, into: int, rate: float) -> None:
        """Apply a block of what a learner sends, or gather it on a replica.

        Args:
            block: Its number.
            mine: The address of what is sent.
            into: The address that gets the new weights; 0 if nobody wants them. (Elastic averaging
                changes what is sent, and has no other answer.)
            rate: The learning rate.
        """
        at, shard = block * BLOCK_BYTES, self._shard
        kept, count = shard.copied_address(block), self._length(block)
        row, other = self._rows[0] + at, self._other and self._other + at
        empty = not self._steps and not shard.progress(block)[1] & COUNT
        if self._alpha is not None:
            self._library.dlctl_elastic(
                row, other, mine, self._undo[0], self._other_undo, kept, count, self._alpha, empty
            )
        elif self._steps:
            self._library.dlctl_step(
                row, other if self._momentum else 0, 0, mine, into, self._undo[0],
                self._other_undo, kept, count, 1, rate * self._scale, self._momentum,
                self._past_caches,
            )  # fmt: skip
        else:
            self._library.dlctl_gather(
                other, row, mine, into, self._other_undo, kept, count, empty, self._past_caches
            )

    def add(self, block: int, mine: int, first: bool) -> None:
        """Add values to the sum of a round, which means nothing before the first addition."""
        self._library.dlctl_gather(
            self._rows[-1] + block * BLOCK_BYTES, 0, mine, 0, self._undo[-1],
            self._shard.copied_address(block), self._length(block), first, False,
        )  # fmt: skip

    def add_last(self, block: int, mine: int, first: bool, learners: int, rate: float) -> None:
        """Take the step for the sum of a round plus these values; the sum itself stays as it was.

        Args:
            block: Its number.
            mine: The address of the values.
            first: Whether nobody has added before.
            learners: How many learners' values that is.
            rate: The learning rate.
        """
        at = block * BLOCK_BYTES
        self._library.dlctl_step(
            self._rows[0] + at, self._other + at if self._momentum else 0,
            0 if first else self._rows[-1] + at, mine, 0, self._undo[0], self._other_undo,
            self._shard.copied_address(block), self._length(block), learners, rate,
            self._momentum, False,
        )  # fmt: skip

    def _length(self, block: int) -> int:
        layout = self._shard.layout
        return min(layout.block_count, layout.count - block * layout.block_count)


def native_for(shard: Shard, solver: object, size_bytes: int = 0) -> Native | None:
    """Return the native pushes of a solver to a shard; None if torch does the work.

    Args:
        shard: A primary or a replica.
        solver: The training's.
        size_bytes: Of the weights of all shards that a learner pushes to.
    """
    if type(solver) not in _SOLVERS or set(shard.layout.dtypes) != {torch.float32}:
        return None
    if (library := load(shard.path.with_name(LIBRARY))) is None:
        return None
    return Native(library, shard, solver, size_bytes >= _CACHED_BYTES)  # type: ignore[arg-type]


def is_plain(tensor: Tensor | None) -> bool:
    """Return whether C can take a tensor as an array of float32."""
    return tensor is None or (tensor.dtype == torch.float32 and tensor.is_contiguous())


def build(folder: Path, solver: object) -> str | None:
    """Compile the functions for a solver, for all processes that use the shards in a folder.

    Returns:
        A line for the log: the compiler, or why torch does the work. None if this solver has no
        native functions, or they were compiled before.
    """
    if type(solver) not in _SOLVERS or (folder / LIBRARY).exists():
        return None
    why = f"there is none of {', '.join(_COMPILERS)}"
    try:
        # The compiler's leftovers are removed with it; learners see by it that they have to wait.
        with TemporaryDirectory(
            prefix=UNFINISHED.replace("*", "native-"), dir=folder, ignore_cleanup_errors=True
        ) as name:
            for compiler in _COMPILERS:
                made = Path(name) / f"{compiler}.so"
                try:
                    _compile(compiler, made)
                except FileNotFoundError:
                    continue
                except subprocess.TimeoutExpired as error:
                    why = f"{compiler} timed out after {error.timeout:g} seconds"
                    break  # learners are waiting
                except (OSError, subprocess.SubprocessError) as error:
                    why = f"{compiler}: {error}"
                else:
                    if load.__wrapped__(made) is not None:
                        made.rename(folder / LIBRARY)
                        return f"pushes are compiled by {compiler}"
                    why = f"{compiler}: its functions do not match torch"
    except OSError as error:
        why = str(error)
    return f"pushes are not compiled, and take longer: {why}"


def _compile(compiler: str, into: Path) -> None:
    """Run a compiler; if it takes too long, it is killed with all processes that it started."""
    command = [compiler, *_FLAGS, "-o", str(into), str(SOURCE)]
    # A file, not a pipe: a leftover process would keep a pipe open.
    with into.with_suffix(".said").open("w+", errors="replace") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=output,
            env={**os.environ, "TMPDIR": str(into.parent), "LC_ALL": "C"},
            start_new_session=True,
        )
        try:
            code = process.wait(_COMPILER_TIMEOUT_S)
        except BaseException:
            end_child(process, group=True)
            raise
        if code:
            output.seek(0)
            lines = output.read().strip().splitlines() or [f"exit code {code}"]
            raise subprocess.SubprocessError(lines[0])


@lru_cache(maxsize=1)
def load(path: Path) -> ctypes.CDLL | None:
    """Return the functions; None if there are none, or they don't match torch here.

    They are loaded from memory: a file system may be mounted noexec. The folder has to be private:
    every user may make one in shared memory, of any name.
    """
    try:
        if not is_private_folder(path.parent):
            return None
        content = path.read_bytes()
        # Never closed: the next descriptor of the same number would be taken for this library.
        descriptor = os.memfd_create(LIBRARY)
        os.write(descriptor, content)
        library = ctypes.CDLL(f"/proc/self/fd/{descriptor}")
        for name, arguments in _ARGUMENTS.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, None
    except (OSError, AttributeError):
        return None
    return library if _matches_torch(library) else None


def _matches_torch(library: ctypes.CDLL) -> bool:
    """Run each function on the same arrays, one after the other, and compare with torch."""
    n = _CHECKED_ELEMENTS
    given = torch.linspace(-1, 1, 6 * n, dtype=torch.float32, device="cpu")
    expected = given.sin().view(6, n)
    found, kept = expected.clone(), torch.zeros(1, dtype=torch.int64, device="cpu")
    weights, other, mine, into, aside, other_aside = expected
    w, o, m, i, a, oa = (row.data_ptr() for row in found)
    k = kept.data_ptr()

    library.dlctl_step(w, o, 0, m, i, a, oa, k, n, 1, 0.1, 0.9, 1)
    aside.copy_(weights), other_aside.copy_(other)
    update_rules.momentum(weights, other, mine, lr=0.1, momentum=0.9, copy=into)

    library.dlctl_elastic(w, o, m, a, oa, k, n, 0.3, 0)
    aside.copy_(weights), other_aside.copy_(other)
    scratch = torch.empty_like(mine)
    update_rules.elastic(weights, mine, scratch, alpha=0.3)
    other.add_(scratch, alpha=0.3)

    library.dlctl_step(w, o, m, i, 0, a, oa, k, n, 3, 0.1, 0.9, 0)
    aside.copy_(weights), other_aside.copy_(other)
    update_rules.momentum(weights, other, (mine + into).div_(3), lr=0.1, momentum=0.9)

    library.dlctl_gather(o, w, m, m, oa, k, n, 0, 1)
    other_aside.copy_(other)
    other.add_(mine)
    mine.copy_(weights)
    return torch.equal(found, expected) and kept.item() == n
