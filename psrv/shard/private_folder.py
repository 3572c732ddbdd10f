"""Private folders in shared memory, where every user of a node may make one of any name."""

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


def make_private_folder(folder: Path) -> None:
    """Make a folder that only this user can write to, or find it.

    Raises:
        PermissionError: Somebody else made it, or others can write there.
        OSError: It can't be made.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_private_folder(folder):
        raise PermissionError(f"{folder} is not private to this user")


def is_private_folder(folder: Path) -> bool:
    """Return whether only this user can write to a folder.

    Raises:
        OSError: It can't be examined.
    """
    found = folder.lstat()
    own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return own and not found.st_mode & 0o022


@contextmanager
def temporary_folder(parent: Path | None, name: str) -> Iterator[Path]:
    """Make a temporary folder for files to map; it is removed at the end with all that it holds.

    Leftovers of killed processes are removed, too. A lock that the kernel frees tells them from
    folders of living processes.

    Args:
        parent: Where; None: where temporary files are.
        name: The prefix of all such folders.
    """
    where = Path(parent or tempfile.gettempdir())
    for left in where.glob(f"{name}.*"):
        if (descriptor := _lock(left)) is not None:
            shutil.rmtree(left, ignore_errors=True)
            os.close(descriptor)
    descriptor = None
    for _ in range(_TRIES):  # another process may have taken it for a leftover
        folder = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=where))
        if (descriptor := _lock(folder)) is not None:
            break
        with suppress(OSError):
            folder.rmdir()
    else:  # the file system has no such locks
        folder = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=where))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)


def _lock(folder: Path) -> int | None:
    """Lock a folder; None if somebody else has locked it, or it is absent or not ours."""
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


def mark_removed(folder: Path) -> None:
    """Mark a folder as removed: learners that start can't get the files that the others work in."""
    with suppress(OSError):
        make_private_folder(folder)
        (folder / _MARK).touch()


def was_removed(folder: Path) -> bool:
    """Return whether a server has marked a folder as removed."""
    return (folder / _MARK).exists()


def clear_removed_mark(folder: Path) -> None:
    """Remove the mark of `mark_removed`: shards are made or taken over.

    Raises:
        OSError: It can't be removed.
    """
    (folder / _MARK).unlink(missing_ok=True)


def removed_error(path: Path) -> ServerError:
    """Return the error for a file that is gone while learners work in it."""
    return ServerError(
        f"{path} is gone, in which learners of this node work: somebody has removed it",
        hint=f"{REMOVED_BY}; `dlctl resume` continues from the newest checkpoint",
    )
