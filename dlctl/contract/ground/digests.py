"""Checksums of files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

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
