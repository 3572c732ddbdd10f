"""Put a folder in the place of another one, so that a late process can't lose what is newer."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from pathlib import Path


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
