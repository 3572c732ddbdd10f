"""The functions of native.c, compiled where they run, and loaded if they do what torch does.

The server compiles them for its own processor before it makes shards; learners load what they find
beside those. The results have the bits of torch's, which is tried when they are loaded; where
anything fails torch does the work.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from psrv.shard.format import UNFINISHED
from psrv.shard.private_folder import is_own_folder
from psrv.solvers import update_rules

SOURCE = Path(__file__).with_name("native.c")
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


class Library(NamedTuple):
    """The functions of native.c. Of arrays they take addresses."""

    downpour: Any
    gather: Any
    elastic: Any
    mean_step: Any


def build(folder: Path) -> str | None:
    """Compile the functions for this node's processor, for all who work on the shards in a folder.

    Returns:
        A line for the log: with what, or why not, and torch does the work. None: it has been done.
    """
    if (folder / LIBRARY).exists():
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
        library = Library(
            loaded.dlctl_downpour, loaded.dlctl_gather, loaded.dlctl_elastic, loaded.dlctl_mean_step
        )
    except (OSError, AttributeError):
        return None
    address, size, real, flag = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_float, ctypes.c_int
    library.downpour.argtypes = [address] * 7 + [size, real, real, flag]
    library.gather.argtypes = [address] * 6 + [size, flag, flag]
    library.elastic.argtypes = [address] * 6 + [size, real, flag]
    library.mean_step.argtypes = [address] * 7 + [size, flag, real, real, real]
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
    update_rules.momentum(weights, other, mine, lr=0.1, momentum=0.9, copy=into)

    library.elastic(w, o, m, a, oa, k, _TRIED, 0.3, 0)
    aside.copy_(weights), other_aside.copy_(other)
    scratch = torch.empty_like(mine)
    update_rules.elastic(weights, mine, scratch, alpha=0.3)
    other.add_(scratch, alpha=0.3)

    library.mean_step(w, o, m, i, a, oa, k, _TRIED, 0, 3, 0.1, 0.9)
    aside.copy_(weights), other_aside.copy_(other)
    update_rules.momentum(weights, other, (mine + into).div_(3), lr=0.1, momentum=0.9)

    library.gather(o, w, m, m, oa, k, _TRIED, 0, 1)
    other_aside.copy_(other)
    other.add_(mine)
    mine.copy_(weights)
    return torch.equal(found, expected) and kept.item() == _TRIED
