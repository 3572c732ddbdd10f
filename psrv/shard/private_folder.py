"""Folders in shared memory, where every user of a node may make one of any name."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from psrv.errors import ServerError

REMOVED_BY = (
    "ask who runs the cluster: logind removes shared memory when its user logs out of a node, "
    "unless its RemoveIPC is no; some epilogs do, too"
)
_MARK = "removed"
_TRIES = 3


def make_own_folder(folder: Path) -> None:
    """Make a folder for this user alone, or find it.

    Raises:
        PermissionError: somebody else made it, or others can write there.
        OSError: it can't be made.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_own_folder(folder):
        raise PermissionError(f"{folder} is not this user's alone")


def is_own_folder(folder: Path) -> bool:
    """Return whether nobody else can put anything there.

    Raises:
        OSError: it can't be looked at.
    """
    found = folder.lstat()
    own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return own and not found.st_mode & 0o022


@contextmanager
def passing_folder(parent: Path | None, name: str) -> Iterator[Path]:
    """Make a folder for files that are mapped while it is there, and remove it with all it holds.

    Those that were killed meanwhile have left theirs: these are removed, too. A lock that the
    kernel frees tells them from those of the living.

    Args:
        parent: None: where temporary files are.
        name: What the names of all such folders begin with.
    """
    where = Path(parent or tempfile.gettempdir())
    for left in where.glob(f"{name}.*"):
        if (descriptor := _lock(left)) is not None:
            shutil.rmtree(left, ignore_errors=True)
            os.close(descriptor)
    descriptor = None
    for _ in range(_TRIES):  # another one may have taken it for left
        folder = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=where))
        if (descriptor := _lock(folder)) is not None:
            break
        with suppress(OSError):
            folder.rmdir()
    else:  # a file system without such locks
        folder = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=where))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)


def _lock(folder: Path) -> int | None:
    """Lock a folder; None: somebody else has locked it, or it is not there, or not ours."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), folder.lstat()):
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def tell_removed(folder: Path) -> None:
    """Leave a mark for learners that start: what the others work in can't be had any more."""
    with suppress(OSError):
        make_own_folder(folder)
        (folder / _MARK).touch()


def was_removed(folder: Path) -> bool:
    """Return whether a server has told so."""
    return (folder / _MARK).exists()


def forget_removed(folder: Path) -> None:
    """Remove that mark: shards are made or taken over.

    Raises:
        OSError: it can't be removed.
    """
    (folder / _MARK).unlink(missing_ok=True)


def removed(path: Path) -> ServerError:
    """Return the error of a process that needs a file that learners work in, and is gone."""
    return ServerError(
        f"{path} is gone, in which learners of this node work: somebody has removed it",
        hint=f"{REMOVED_BY}; `dlctl resume` goes on from the newest checkpoint",
    )
