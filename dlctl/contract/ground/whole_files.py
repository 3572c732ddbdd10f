"""Write files whole, make names durable, and sum up contents."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

WRITING = ".dlctl-writing."
"""Prefix of the temporary name of a file that is not yet complete, beside its final place."""


def write_whole(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Write a file so that a reader sees the old content or the new, never a part.

    A missing folder is created, but none above it: a job directory that somebody removed is not
    created again.

    Args:
        mode: The file's permissions, less the process's umask.
    """
    path.parent.mkdir(exist_ok=True)
    with whole_file(path, mode) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def whole_file(
    path: Path, mode: int = 0o666, *, tag: str = "", sync: bool = True
) -> Iterator[BinaryIO]:
    """Open a file that takes a path's place once the block has ended well.

    Args:
        mode: As `write_whole`; `tag` and `sync` are those of `whole_path`.
    """
    opener = partial(os.open, mode=mode)
    with whole_path(path, tag=tag, sync=False) as new, open(new, "xb", opener=opener) as file:
        yield file
        if sync:
            file.flush()
            os.fsync(file.fileno())
    if sync:
        sync_directory(path.parent)


@contextlib.contextmanager
def whole_path(path: Path, *, tag: str = "", suffix: str = "", sync: bool = True) -> Iterator[Path]:
    """Yield a free name: what is made there takes a path's place once the block has ended well.

    If the block fails, what was at the path stays.

    Args:
        tag: What the temporary name begins with, behind `WRITING`.
        suffix: What it ends with, for libraries that look at it.
        sync: Whether it is on the disk afterwards, also when the machine fails.
    """
    temporary = path.with_name(f"{WRITING}{tag}{secrets.token_hex(8)}{suffix}")
    try:
        yield temporary
        if sync:
            _sync(temporary, os.O_RDONLY)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if sync:
        sync_directory(path.parent)


def refresh(folder: Path) -> None:
    """Make a network file system look again: it may cache for a long time that a file is absent."""
    with contextlib.suppress(OSError), os.scandir(folder):
        pass


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    if hasattr(os, "O_DIRECTORY"):  # not Windows, where a folder can't be opened
        _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_CHUNK_BYTES = 1 << 20


def sha256_of(path: Path, tick: Callable[[], None] | None = None) -> str:
    """Return the SHA-256 of a file, read in chunks; `tick` is called after each."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            if tick is not None:
                tick()
    return digest.hexdigest()
