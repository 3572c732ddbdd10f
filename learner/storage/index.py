"""The index of the results: every file with its size and digest, so that a copy can be verified."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from dlctl import contract
from dlctl.contract import ResultFile, ResultsIndex, to_json, write_whole
from dlctl.contract.ground.amounts import counted, format_bytes
from dlctl.contract.ground.whole_files import sha256_of
from learner.storage.progress import Tick

_PATIENCE_S = 10.0
"""How long to wait for an export to add its file to the index."""
_MOST_SHOWN = 10
"""How many names of skipped files are printed."""


def write_index(folder: Path, tick: Tick | None = None) -> ResultsIndex:
    """Hash every file of `results/` in an attempt's folder, and write `results.json` there."""
    results = folder / contract.RESULTS
    results.mkdir(exist_ok=True)  # not in a job directory that somebody has removed
    with alone(results, _PATIENCE_S, tick):
        files, left_out = result_files(results)
        index = index_of(results, files, tick, left_out)
        write_whole(folder / contract.RESULTS_INDEX, to_json(index))
    return index


def index_of(
    root: Path, files: Sequence[Path], tick: Tick | None = None, left_out: Sequence[Path] = ()
) -> ResultsIndex:
    """Return the index of files below a folder; those that can't be read are left out, too."""
    hashed, left_out = [], [*left_out]
    for path in files:
        try:
            size_bytes, digest = path.stat().st_size, sha256_of(path, tick)
        except PermissionError:  # the program's own choice: no reason to train again
            left_out.append(path)
        else:
            hashed.append(ResultFile(str(path.relative_to(root)), size_bytes, digest))
    return ResultsIndex(hashed, [str(path.relative_to(root)) for path in left_out])


@contextlib.contextmanager
def alone(results: Path, patience_s: float = math.inf, tick: Tick | None = None) -> Iterator[None]:
    """Let one process at a time change the index, if the file system supports locks.

    An export adds its file to the index, while the supervisor may be about to write it.

    Args:
        patience_s: After this long, go ahead without the lock.
        tick: Called while another process has the lock.
    """
    descriptor, until = os.open(results, os.O_RDONLY), time.monotonic() + patience_s
    try:
        while _is_locked(descriptor) and time.monotonic() < until:
            time.sleep(0.05)
            if tick is not None:
                tick()
        yield
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    """Lock a folder; return whether another process has it locked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def result_files(results: Path) -> tuple[list[Path], list[Path]]:
    """Return the files below a folder, in a fixed order, and what is left out.

    A link counts as the file that it leads to, if that is in the folder, too. What a killed process
    of ours left half written is neither.
    """
    inside = results.resolve()
    files: list[Path] = []
    left_out: list[Path] = []
    unread: list[OSError] = []
    for folder, folders, names in os.walk(results, onerror=lambda error: unread.append(error)):
        folders.sort()
        links = [name for name in folders if Path(folder, name).is_symlink()]
        for path in (Path(folder, name) for name in sorted([*names, *links])):
            if not path.name.startswith(contract.WRITING):
                (files if _is_file(path, inside) else left_out).append(path)
    return files, [*left_out, *(Path(error.filename) for error in unread)]


def _is_file(path: Path, inside: Path) -> bool:
    # Before Python 3.13 a link to itself raises RuntimeError.
    with contextlib.suppress(OSError, RuntimeError):
        return path.is_file() and inside in path.resolve().parents
    return False


def tell_index(index: ResultsIndex) -> list[str]:
    """Return one line about the files in the index, and one about the files left out."""
    size = format_bytes(sum(file.size_bytes for file in index.files))
    lines = [f"{counted(len(index.files), 'file')}, {size}"]
    if left := index.left_out:
        more = ", …" if len(left) > _MOST_SHOWN else ""
        lines.append(f"left out: {len(left)}: {', '.join(map(repr, left[:_MOST_SHOWN]))}{more}")
    return lines
