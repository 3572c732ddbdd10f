"""Compiles native.c on the node that runs it, and loads the functions if they match torch.

The server compiles them for its own processor before it makes shards; learners load what they find
beside those. Loading checks that the results have the same bits as torch's. If anything fails,
torch does the work.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from dlctl.contract.ground.processes import end_child
from psrv.shard.format import UNFINISHED
from psrv.shard.private_folder import is_private_folder
from psrv.solvers import update_rules

SOURCE = Path(__file__).with_name("native.c")
COMPILERS = ("cc", "gcc", "clang")
LIBRARY = "native.so"
_FLAGS = (
    "-O3", "-march=native", "-ffp-contract=off", "-ffreestanding", "-fPIC", "-shared", "-nostdlib",
    "-pipe",
)  # fmt: skip
"""Neither headers nor libraries are needed, except the compiler's own: those of C are often absent
where programs are not built."""
_BUILD_PREFIX = UNFINISHED.replace("*", "native-")
_COMPILER_TIMEOUT_S = 20
_TEST_ELEMENTS = 208
"""Number of elements: some whole chunks and a rest; and whole cache lines."""


class Library(NamedTuple):
    """The functions of native.c. They take addresses of arrays."""

    downpour: Any
    gather: Any
    elastic: Any
    mean_step: Any


def build(folder: Path) -> str | None:
    """Compile the functions for this node's processor, for all that use the shards in a folder.

    Returns:
        A line for the log: the compiler, or why torch does the work. None if they were compiled
        before.
    """
    if (folder / LIBRARY).exists():
        return None
    try:
        # The compiler's leftovers are removed with it; learners see by it that they have to wait.
        with TemporaryDirectory(
            prefix=_BUILD_PREFIX, dir=folder, ignore_cleanup_errors=True
        ) as name:
            return _build(Path(name), folder / LIBRARY)
    except OSError as error:
        return _not_compiled(str(error))


def _build(folder: Path, library: Path) -> str:
    why = f"there is none of {', '.join(COMPILERS)}"
    for compiler in COMPILERS:
        made = folder / f"{compiler}.so"
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
            break  # learners are waiting
        else:
            if _load(made) is not None:
                made.rename(library)
                return f"pushes are compiled by {compiler}"
            why = f"{compiler}: its functions do not match torch"
    return _not_compiled(why)


def _not_compiled(why: str) -> str:
    return f"pushes are not compiled, and take longer: {why}"


def _compile(compiler: str, into: Path) -> None:
    """Run a compiler; if it takes too long, it is killed with all processes that it started."""
    command = [compiler, *_FLAGS, "-o", str(into), str(SOURCE)]
    # A file, not a pipe: a leftover process would keep a pipe open.
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
            end_child(process, group=True)
            raise
        if code:
            said.seek(0)
            raise subprocess.CalledProcessError(code, command, stderr=said.read())


@lru_cache(maxsize=1)
def load(path: Path) -> Library | None:
    """Return the functions; None if there are none, or they don't match torch here."""
    return _load(path)


def _load(path: Path) -> Library | None:
    """Load the functions from memory: a file system may be mounted noexec.

    The folder has to be private: every user may make one in shared memory, of any name.
    """
    try:
        if not is_private_folder(path.parent):
            return None
        content = path.read_bytes()
        # Never closed: the next descriptor of the same number would be taken for this library.
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
    return library if _matches_torch(library) else None


def _matches_torch(library: Library) -> bool:
    """Run each function on the same arrays, one after the other, and compare with torch."""
    given = torch.linspace(-1, 1, 6 * _TEST_ELEMENTS, dtype=torch.float32, device="cpu")
    expected = given.sin().view(6, _TEST_ELEMENTS)
    found, kept = expected.clone(), torch.zeros(1, dtype=torch.int64, device="cpu")
    weights, other, mine, into, aside, other_aside = expected
    w, o, m, i, a, oa = (row.data_ptr() for row in found)
    k = kept.data_ptr()

    library.downpour(w, o, m, i, a, oa, k, _TEST_ELEMENTS, 0.1, 0.9, 1)
    aside.copy_(weights), other_aside.copy_(other)
    update_rules.momentum(weights, other, mine, lr=0.1, momentum=0.9, copy=into)

    library.elastic(w, o, m, a, oa, k, _TEST_ELEMENTS, 0.3, 0)
    aside.copy_(weights), other_aside.copy_(other)
    scratch = torch.empty_like(mine)
    update_rules.elastic(weights, mine, scratch, alpha=0.3)
    other.add_(scratch, alpha=0.3)

    library.mean_step(w, o, m, i, a, oa, k, _TEST_ELEMENTS, 0, 3, 0.1, 0.9)
    aside.copy_(weights), other_aside.copy_(other)
    update_rules.momentum(weights, other, (mine + into).div_(3), lr=0.1, momentum=0.9)

    library.gather(o, w, m, m, oa, k, _TEST_ELEMENTS, 0, 1)
    other_aside.copy_(other)
    other.add_(mine)
    mine.copy_(weights)
    return torch.equal(found, expected) and kept.item() == _TEST_ELEMENTS
