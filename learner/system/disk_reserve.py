"""A little reserved disk space, so that an attempt's last files can be written on a full disk."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path

SIZE_BYTES = 64 * 1024
FULL = (errno.ENOSPC, errno.EDQUOT)


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
