"""Whose the results are: each attempt has a folder of its own, and the newest one owns them.

A process of an earlier attempt may wake up late, after a pause of hours, and write. It must not win
against its successor: an attempt takes the results of its predecessor by one rename, so that the
predecessor's path no longer exists, and what it still publishes stays in its own folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from dlctl import contract
from dlctl.contract import whole_path
from learner.storage.progress import Tick


def take_over(job_dir: Path, attempt: int, tick: Tick) -> Path:
    """Return the folder of an attempt's results, with what earlier attempts have left there.

    Raises:
        OSError: the disk is full, or the file system does not answer.
    """
    own = job_dir / contract.results_dir(attempt)
    if not own.is_dir():
        before, owner = _newest_before(job_dir, attempt)
        if before is None:
            own.mkdir()
        else:
            before.rename(own)
            if _may_be_written(job_dir, owner, attempt):
                try:
                    _separate(own, tick)
                except BaseException:
                    with contextlib.suppress(OSError):
                        own.rename(before)  # so that the next attempt knows that it has to copy
                    raise
    for name, target in ((contract.RESULTS, own), (contract.RESULTS_INDEX,
                         job_dir / contract.results_index(attempt))):  # fmt: skip
        _point(job_dir / name, target)
    return own


def _newest_before(job_dir: Path, attempt: int) -> tuple[Path | None, int]:
    """Return the results of the newest earlier attempt that has any, and its number."""
    for earlier in range(attempt - 1, 0, -1):
        folder = job_dir / contract.results_dir(earlier)
        if folder.is_dir():
            return folder, earlier
    shared = job_dir / contract.RESULTS  # dlctl 0.1 had one folder for all attempts
    return (shared if shared.is_dir() and not shared.is_symlink() else None), 1


def _may_be_written(job_dir: Path, owner: int, attempt: int) -> bool:
    """Return whether an attempt from the owner on left no verdict: it may have files open there."""
    verdicts = (job_dir / contract.verdict_file(each) for each in range(owner, attempt))
    return not all(verdict.exists() for verdict in verdicts)


def _separate(folder: Path, tick: Tick) -> None:
    """Replace each file by a copy, so that a late process writes into files that nobody reads."""
    for path, _, names in os.walk(folder):
        for file in (Path(path, name) for name in names):
            if file.is_symlink() or not file.is_file():
                continue
            with contextlib.suppress(PermissionError), whole_path(file, sync=False) as copy:
                shutil.copy2(file, copy)
            tick()


def _point(link: Path, target: Path) -> None:
    """Make a link at the top of the job directory; what else is there stays."""
    if link.exists() and not link.is_symlink():
        return
    with whole_path(link, sync=False) as new:
        new.symlink_to(target.relative_to(link.parent))
