"""Folders in shared memory, where every user of a node may make one of any name."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def make_own_folder(folder: Path) -> None:
    """Make a folder for this user alone, or find it.

    Raises:
        PermissionError: somebody else made it, or others can write there.
        OSError: it can't be made.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder} is not this user's alone")
