"""A little space kept aside, so that the last words of an attempt fit on a disk that ran full."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path

SIZE_BYTES = 64 * 1024
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Reserve:
    """A file that only takes up space, until it is freed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # A disk that is full already: then nothing can be kept aside.
        with contextlib.suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"\1" * SIZE_BYTES)

    def free(self) -> None:
        """Give the space back."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


def is_full(folder: Path) -> bool:
    """Return whether nothing more can be written: the disk is full, or a quota is used up."""
    probe = folder / ".space"
    try:
        probe.write_bytes(b"\1" * SIZE_BYTES)
    except OSError as error:
        return error.errno in _FULL
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)
    return False
