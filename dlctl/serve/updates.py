"""Whether dlctl was updated below a server that runs: what it imports then may not fit."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from pathlib import Path

import dlctl


def _stamp() -> tuple[tuple[str, int, int], ...]:
    folder = Path(dlctl.__file__).parent
    with suppress(OSError):
        files = sorted(folder.rglob("*.py"))
        return tuple((str(p), p.stat().st_mtime_ns, p.stat().st_size) for p in files)
    return ()


@cache
def code_digest() -> tuple[tuple[str, int, int], ...]:
    """Return what tells the code that runs from what an update would put in its place."""
    return _stamp()


def code_has_changed() -> bool:
    """Return whether dlctl was updated below the server."""
    return _stamp() != code_digest()
