"""The folder on this machine that files are downloaded into: what may get which name there.

No name from a site leads out of the folder, and no two files of a site get the same place, which
they could in a folder that takes `A` for `a`, or one form of `é` for another.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shlex
import shutil
import tempfile
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dlctl.contract.ground.safe_text import printable
from dlctl.contract.ground.space import see_space
from dlctl.errors import TransferError
from dlctl.files.listing import SiteFile
from dlctl.units import format_bytes

PARTIAL = ".dlctl-partial"
"""The folder of what has arrived in part; the next download goes on with it."""
_TEMPORARY_PREFIX = ".dlctl-download."
_SPARE_BYTES = 16 * 1024 * 1024
"""What a disk should have left: for the names, and for what else is written meanwhile."""


class Target:
    """A folder for downloads. Files replace what is there; subclasses know better."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Return what lets nobody else write to the folder meanwhile."""
        return alone(self.path)

    def is_current(self, path: Path, identity: str) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether a file is surely what came from the content with this identity."""
        return False

    def note(self, path: Path, identity: str) -> None:
        """Note that a file is as it is at the site."""

    def place(self, arrived: Path, path: Path, identity: str) -> None:
        """Move a file that has arrived to its path."""
        path.parent.mkdir(parents=True, exist_ok=True)
        arrived.replace(path)
        self.note(path, identity)


@contextlib.contextmanager
def alone(folder: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Let one process at a time write to a folder, where the file system has locks."""
    try:
        import fcntl
    except ImportError:  # no such system
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write_all(out: io.FileIO, data: bytes) -> None:
    """Write data to an unbuffered file, which may take it in parts."""
    view = memoryview(data)
    while view:
        view = view[out.write(view) or 0 :]


def make_executable(path: Path) -> None:
    """Let everybody run a file who may read it."""
    mode = path.stat().st_mode
    path.chmod(mode | (mode & 0o444) >> 2)


def temporary_folder(destination: Path) -> tempfile.TemporaryDirectory[str]:
    """Return a folder for files that come whole or not at all; `tidy` removes what is left."""
    prefix = f"{_TEMPORARY_PREFIX}{os.getpid()}."
    return tempfile.TemporaryDirectory(prefix=prefix, dir=destination)


def remove_leftovers(destination: Path) -> None:
    """Remove the temporary folders of downloads that were killed."""
    for folder in destination.glob(_TEMPORARY_PREFIX + "*"):
        pid = folder.name.split(".")[2]
        if not (pid.isdecimal() and _lives(int(pid))):
            shutil.rmtree(folder, ignore_errors=True)


def _lives(pid: int) -> bool:
    if pid == os.getpid():
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def refuse_link_parents(destination: Path, path: Path) -> None:
    """Refuse an existing link here that would lead a file out of the destination.

    Raises:
        TransferError
    """
    root = destination.resolve()
    if not path.parent.resolve().is_relative_to(root):
        raise TransferError(
            f"{printable(path.parent)} points outside {printable(destination)}: refused",
            hint="Remove the link, or choose another destination.",
        )


def leads_out(destination: Path, folder: Path, link: str) -> bool:
    """Return whether a link in a folder below the destination may lead out of it.

    `..` counts only at the beginning of a link: behind a name, which may be a link itself, nobody
    knows where it leads. The folder counts by its name, as a download puts a folder in the place of
    a link, and by what it is now.
    """
    names = [name for name in link.split("/") if name not in ("", ".")]
    rising = next((n for n, name in enumerate(names) if name != ".."), len(names))
    depth = len(folder.relative_to(destination).parts)
    real_depth = len(folder.resolve().relative_to(destination.resolve()).parts)
    return link.startswith("/") or ".." in names[rising:] or rising > min(depth, real_depth)


def is_own(path: str) -> bool:
    """Return whether a path in the destination is one of those that downloads use themselves."""
    top = path.partition("/")[0]
    return top == PARTIAL or top.startswith(_TEMPORARY_PREFIX)


# Names that a folder takes for the same --------------------------------------------------------


def doubles(destination: Path, paths: Sequence[str]) -> dict[str, str]:
    """Return paths that would take the place of an earlier one in this folder, with that one."""
    fold = folding(destination)
    if fold is None:
        return {}
    first: dict[str, str] = {}
    found = {}
    for path in paths:
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            name = "/".join(parts[:depth])
            other = first.setdefault(fold(name), name)
            if other != name:
                found[path] = other
                break
    return found


def folding(destination: Path) -> Callable[[str], str] | None:
    """Return what makes names equal that are one name in a folder; None if all differ there."""
    with tempfile.TemporaryDirectory(prefix=_TEMPORARY_PREFIX, dir=destination) as folder:
        try:
            Path(folder, "CASE-\u00e9").touch()
        except UnicodeEncodeError:  # Python's names are ASCII here, as with LC_ALL=POSIX
            return None
        ignores_case = os.path.lexists(Path(folder, "case-\u00e9"))
        ignores_form = os.path.lexists(Path(folder, "CASE-e\u0301"))
    if not ignores_case and not ignores_form:
        return None

    def fold(name: str) -> str:
        name = unicodedata.normalize("NFC", name) if ignores_form or ignores_case else name
        return unicodedata.normalize("NFC", name.casefold()) if ignores_case else name

    return fold


# Room, sums and faults -------------------------------------------------------------------------


def check_room(destination: Path, files: Sequence[SiteFile], here_bytes: int) -> None:
    """Refuse a download that the disk here has no room for, before anything flows.

    Args:
        here_bytes: How much of it is here already.

    Raises:
        TransferError
    """
    missing_bytes = sum(file.size_bytes for file in files) - here_bytes
    free_bytes = shutil.disk_usage(destination).free
    if files and missing_bytes + _SPARE_BYTES > free_bytes:
        raise TransferError(
            f"{printable(destination)} has {format_bytes(free_bytes)} free, and "
            f"{format_bytes(missing_bytes)} are to come: nothing was fetched",
            hint="Free space there, name another folder with --to, or choose files with --include.",
        )


def local_failure(destination: Path, error: OSError) -> TransferError:
    """Return what a fault of this machine's disk means for a download."""
    what = error.strerror or str(error)
    check = f"that you may write there (ls -ld {shlex.quote(printable(destination))})"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        what = "the disk here is full, or your quota is used up"
        check = f"the space here ({see_space(destination)})"
    return TransferError(
        f"{printable(error.filename2 or error.filename or destination)}: {what}",
        hint=f"Check {check}, then try again: what has arrived is not sent twice.",
    )
