"""Write files whole, and make names durable."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

WRITING = ".dlctl-writing."
"""Prefix of the temporary name of a file that is not yet complete, beside its final place."""
_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)  # Unix has one, Windows the other


def write_whole(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Write a file so that a reader sees the old content or the new, never a part.

    Temporary file in the same folder, fsync, `os.replace`, fsync of the folder. A missing folder is
    created, but none above it: a job directory that somebody removed is not created again.

    Args:
        mode: The file's permissions, less the process's umask.
    """
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(exist_ok=True)
    descriptor, temporary = create_temporary(path.parent, mode=mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def create_temporary(folder: Path, suffix: str = "", mode: int = 0o666) -> tuple[int, Path]:
    """Create a file that is not complete yet; return its open descriptor and its path.

    Unlike `tempfile.mkstemp`, this leaves the permissions to the process's umask.
    """
    path = folder / f"{WRITING}{secrets.token_hex(8)}{suffix}"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, mode), path


def refresh(folder: Path) -> None:
    """Make a network file system look again: it may cache for a long time that a file is absent."""
    with contextlib.suppress(OSError), os.scandir(folder):
        pass


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows, where a folder can't be opened
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
