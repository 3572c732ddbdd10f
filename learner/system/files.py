"""Files of a node: put a folder in place, keep some of the disk in reserve, read a credential."""

from __future__ import annotations

import contextlib
import errno
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from learner.errors import UserFault


def put_in_place(
    new: Path, final: Path, aside: Path, rename: Callable[[Path, Path], object] = Path.rename
) -> bool:
    """Give a folder its name; return whether another one had it, which is then called `aside`.

    A process that looks first whether `final` exists may stop there, and then move away what its
    successor has put in place since. This one puts back what it moved if it lost `new` since, which
    a successor takes away before it begins. Meanwhile `final` is missing for a moment, and if the
    process is killed in that moment, what was there stays under the name `aside`.

    Raises:
        OSError: such as FileNotFoundError if a successor has taken `new`.
    """
    try:
        rename(new, final)
        return False
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    rename(final, aside)
    try:
        rename(new, final)
    except OSError:
        put_back(aside, final)
        raise
    return True


def put_back(aside: Path, final: Path) -> bool:
    """Give a folder its name again, if no other one has it; return whether that was done."""
    with contextlib.suppress(OSError):
        aside.rename(final)
        return True
    return False


SIZE_BYTES = 64 * 1024
FULL = (errno.ENOSPC, errno.EDQUOT)
FULL_DISK = "dlctl: No space left on device: the job directory's disk is full"
"""The evidence where `is_full`: what a program itself wrote may not have fit into its log."""


class Reserve:
    """A file that only takes up space, until it is freed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # On a disk that is already full, nothing can be reserved.
        with contextlib.suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"\1" * SIZE_BYTES)

    def free(self) -> None:
        """Free the space."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


def is_full(folder: Path) -> bool:
    """Return whether nothing more can be written: the disk is full, or a quota is used up."""
    probe = folder / ".space"
    try:
        probe.write_bytes(b"\1" * SIZE_BYTES)
    except OSError as error:
        return error.errno in FULL
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)
    return False


def resolve_secret(name: str, reference: str, root: Path, base: Mapping[str, str]) -> str:
    """Return the value behind `env:NAME` or `file:PATH` (relative to the site's root)."""
    kind, _, where = reference.partition(":")
    if kind == "env" and where in base:
        return base[where]
    if kind == "env":
        raise UserFault(
            f"The secret {name} refers to the variable {where!r}, which is not set on this node.",
            hint=f"Set {where} in the site's environment, or refer to a file with file:PATH.",
        )
    if kind != "file":
        raise UserFault(
            f"The secret {name} has a reference of an unknown kind, {kind!r}.",
            hint="References are env:NAME or file:PATH.",
        )
    return _read_secret(name, root / Path(where).expanduser())


def _read_secret(name: str, path: Path) -> str:
    try:
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise UserFault(
                f"The secret {name} is in a file that others may read: {str(path)!r}.",
                hint=f"Run on that node: chmod 600 {path}",
            )
        return path.read_text().rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8 text"
        raise UserFault(
            f"The secret {name} can't be read from {str(path)!r}: {why}.",
            hint="Put the file there with mode 0600, or submit again.",
        ) from error
