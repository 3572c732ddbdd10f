"""The command that shows what has run out on a file system: its bytes, or its inodes."""

from __future__ import annotations

import os
import shlex
from pathlib import Path


def see_space(path: Path) -> str:
    """Return the command that shows here what is used up where a path is, or would be."""
    for folder in (path, *path.parents):
        try:
            found = os.statvfs(folder)
        except (OSError, ValueError, AttributeError):  # it is not there; Windows has no statvfs
            continue
        # Some file systems don't count inodes: they have none, and none are free.
        kind = "i" if found.f_files and not found.f_favail else "h"
        return f"df -{kind} {shlex.quote(os.fspath(folder))}"
    return f"df -h {shlex.quote(os.fspath(path))}"
