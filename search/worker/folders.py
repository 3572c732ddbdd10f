"""The folders of a task's runs: no two runs ever write into the same one.

A run whose worker was cut off may still write while another one runs. So each run has a folder of
its own, `run-<n>`, which begins with a copy of what the run before it left. Nobody writes into that
of a task that was handed back: its next run goes on there. `checkpoint` is a link to the newest.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from pathlib import Path

from dlctl.contract import search as files
from search.protocol import messages as m

NEWEST = "checkpoint"
_RUN = "run-"


def claim(job_dir: Path, task: m.Task) -> tuple[Path, Path | None]:
    """Return the folder of a new run, and the folder that is to be copied into it first, if any."""
    root = job_dir / files.TASKS / task.id
    given = job_dir / task.checkpoint if task.checkpoint else None
    if given is not None and given.parent == root and given.is_dir():
        return given, None
    root.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        folder = root / f"{_RUN}{number}"
        try:
            folder.mkdir()
            break
        except FileExistsError:
            continue
    if number == 1:
        earlier = [given] if given is not None and given.is_dir() else []
    else:
        earlier = [root / f"{_RUN}{before}" for before in range(number - 1, 0, -1)]
    try:
        (root / NEWEST).symlink_to(folder.name)
    except FileExistsError:
        if not (root / NEWEST).is_symlink():  # a worker in another language has made it
            earlier.insert(0, root / NEWEST)
        _point_to(folder)
    return folder, next((each for each in earlier if _holds_anything(each)), None)


def copy(source: Path, folder: Path) -> None:
    """Copy what an earlier run left. Nobody takes half a copy for a whole one."""
    copying = folder.with_name(f".copying-{folder.name}")
    shutil.copytree(source, copying, symlinks=True, copy_function=_copy_if_there)
    copying.rename(folder)  # which is empty


def tidy(root: Path, folder: Path | None) -> None:
    """Remove what a task's run has left empty: a search may have a million tasks."""
    with contextlib.suppress(OSError):
        if (root / "log").stat().st_size == 0:
            (root / "log").unlink()
    if folder is not None:
        with contextlib.suppress(OSError):
            folder.rmdir()
            if (root / NEWEST).readlink() == Path(folder.name):
                (root / NEWEST).unlink()
    with contextlib.suppress(OSError):
        root.rmdir()


def _point_to(folder: Path) -> None:
    link = folder.with_name(f".link-{folder.name}")
    link.symlink_to(folder.name)
    try:
        link.replace(folder.with_name(NEWEST))
    except OSError:  # it is a folder
        link.unlink()


def _holds_anything(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return any(folder.iterdir())
    return False


def _copy_if_there(source: str, target: str) -> None:
    """Copy a file, unless its writer has just removed or renamed it."""
    with contextlib.suppress(FileNotFoundError):
        shutil.copy2(source, target)


def relative(job_dir: Path, folder: Path) -> str:
    """Return how a result names a folder that its task goes on from; empty if it is empty."""
    return os.fspath(folder.relative_to(job_dir)) if _holds_anything(folder) else ""
