"""Pushes in one pass over memory, by a few functions in C, where a node has a compiler for them.

torch takes three passes for a push with its pull: the copy for undoing, the step, and the learner's
own copy. Measured on blocks of 256 KiB (fused.c called for each, two processes, 102 MB each): 1.4
times as many updates a second (docs/benchmarks.md). The server compiles fused.c for its own
processor before it makes shards; learners load what they find beside those. The results have the
bits of torch's, which is tried when it is loaded; where anything fails torch does the work.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from psrv import solvers
from psrv.folder import is_own_folder
from psrv.rules import Downpour, ElasticAveraging
from psrv.shard import Operation, Shard
from psrv.shard_file import BLOCK_BYTES, COUNT, HOME, UNFINISHED

SOURCE = Path(__file__).with_name("fused.c")
COMPILERS = ("cc", "gcc", "clang")
LIBRARY = "fused.so"
_FLAGS = (
    "-O3", "-march=native", "-ffp-contract=off", "-ffreestanding", "-fPIC", "-shared", "-nostdlib",
    "-pipe",
)  # fmt: skip
"""No header and no library are needed but the compiler's own: C's are often absent where programs
are not built."""
_ROOM = UNFINISHED.replace("*", "fused-")
_COMPILER_TIMEOUT_S = 20
_TRIED = 208
"""Elements: some whole chunks and a rest; and whole lines of the cache."""
_CACHED_BYTES = 8 * 2**20
"""Less than this the caches may still have when a learner reads its new weights; more is stored
past them. (A gradient written, pushed, and the weights read, two learners, ms with and without:
0.74 and 0.70 for 4 MiB, 2.3 and 2.7 for 8, 21.3 and 24.9 for 64.)"""


def build(folder: Path, solver: object) -> str | None:
    """Compile the functions for this node's processor, for all who work on the shards in a folder.

    Returns:
        A line for the log: with what, or why not, and torch does the work. None: there is nothing
        to do for this solver, or it has been done.
    """
    if type(solver) not in _FUSED or (folder / LIBRARY).exists():
        return None
    try:
        # What a compiler leaves goes with it; learners see by it that they are to wait.
        with TemporaryDirectory(prefix=_ROOM, dir=folder, ignore_cleanup_errors=True) as name:
            return _build(Path(name), folder / LIBRARY)
    except OSError as error:
        return _not_compiled(str(error))


def _build(room: Path, library: Path) -> str:
    why = f"there is none of {', '.join(COMPILERS)}"
    for compiler in COMPILERS:
        made = room / f"{compiler}.so"
        try:
            _compile(compiler, made)
        except FileNotFoundError:
            continue
        except subprocess.CalledProcessError as error:
            said = error.stderr.strip().splitlines() or [f"exit code {error.returncode}"]
            why = f"{compiler}: {said[0]}"
        except OSError as error:
            why = f"{compiler}: {error}"
        except subprocess.TimeoutExpired as error:
            why = f"{compiler} timed out after {error.timeout:g} seconds"
            break  # learners wait
        else:
            if _load(made) is not None:
                made.rename(library)
                return f"pushes are compiled by {compiler}"
            why = f"{compiler}: what it has made does not do what torch does"
    return _not_compiled(why)


def _not_compiled(why: str) -> str:
    return f"pushes are not compiled, and take longer: {why}"


def _compile(compiler: str, into: Path) -> None:
    """Call it; what it has started ends with it, if that takes too long."""
    command = [compiler, *_FLAGS, "-o", str(into), str(SOURCE)]
    # A file: of a pipe the end is waited for, which whatever it leaves running would keep open.
    with into.with_suffix(".said").open("w+", errors="replace") as said:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            env={**os.environ, "TMPDIR": str(into.parent), "LC_ALL": "C"},
            start_new_session=True,
        )
        try:
            code = process.wait(_COMPILER_TIMEOUT_S)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        if code:
            said.seek(0)
            raise subprocess.CalledProcessError(code, command, stderr=said.read())


class Library(NamedTuple):
    """The functions of fused.c. Of arrays they take addresses."""

    downpour: Any
    gather: Any
    elastic: Any


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
        if not all(tensor is None or _is_plain(tensor) for tensor in (mine, into)):
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


def past_caches(size_bytes: int) -> bool:
    """Return whether weights of this size, of all shards together, are stored past the caches."""
    return size_bytes >= _CACHED_BYTES


def _two(rows: Sequence[torch.Tensor]) -> tuple[int, int]:
    """Return the addresses of the first two."""
    return rows[0].data_ptr(), rows[1].data_ptr() if len(rows) > 1 else 0


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.dtype == torch.float32 and tensor.is_contiguous()


def fused_for(shard: Shard, solver: object) -> Fused | None:
    """Return what works on a shard in one pass; None: torch does."""
    make = _FUSED.get(type(solver))
    if make is None or any(dtype != torch.float32 for dtype in shard.layout.dtypes):
        return None
    library = load(shard.path.with_name(LIBRARY))
    return None if library is None else make(library, shard, solver)


@lru_cache(maxsize=1)
def load(path: Path) -> Library | None:
    """Return the functions, or None: there are none, or they are not what torch does here."""
    return _load(path)


def _load(path: Path) -> Library | None:
    """Load them from memory: from a file system that is mounted noexec nothing can be.

    Of a folder of this user alone: every user may make one in shared memory, of any name.
    """
    try:
        if not is_own_folder(path.parent):
            return None
        content = path.read_bytes()
        # It stays open: the next one of the same number would be taken for this one.
        descriptor = os.memfd_create(LIBRARY)
        os.write(descriptor, content)
        loaded = ctypes.CDLL(f"/proc/self/fd/{descriptor}")
        library = Library(loaded.dlctl_downpour, loaded.dlctl_gather, loaded.dlctl_elastic)
    except (OSError, AttributeError):
        return None
    address, size, real, flag = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_float, ctypes.c_int
    library.downpour.argtypes = [address] * 7 + [size, real, real, flag]
    library.gather.argtypes = [address] * 6 + [size, flag, flag]
    library.elastic.argtypes = [address] * 6 + [size, real, flag]
    for function in library:
        function.restype = None
    return library if _has_bits_of_torch(library) else None


def _has_bits_of_torch(library: Library) -> bool:
    """Try each function, one after the other on the same arrays."""
    given = torch.linspace(-1, 1, 6 * _TRIED, dtype=torch.float32, device="cpu")
    expected = given.sin().view(6, _TRIED)
    found, kept = expected.clone(), torch.zeros(1, dtype=torch.int64, device="cpu")
    weights, other, mine, into, aside, other_aside = expected
    w, o, m, i, a, oa = (row.data_ptr() for row in found)
    k = kept.data_ptr()

    library.downpour(w, o, m, i, a, oa, k, _TRIED, 0.1, 0.9, 1)
    aside.copy_(weights), other_aside.copy_(other)
    solvers.momentum(weights, other, mine, lr=0.1, momentum=0.9, copy=into)

    library.elastic(w, o, m, a, oa, k, _TRIED, 0.3, 0)
    aside.copy_(weights), other_aside.copy_(other)
    scratch = torch.empty_like(mine)
    solvers.elastic(weights, mine, scratch, alpha=0.3)
    other.add_(scratch, alpha=0.3)

    library.gather(o, w, m, m, oa, k, _TRIED, 0, 1)
    other_aside.copy_(other)
    other.add_(mine)
    mine.copy_(weights)
    return torch.equal(found, expected) and kept.item() == _TRIED
