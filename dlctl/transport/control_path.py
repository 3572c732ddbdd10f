"""Choose the path of an open ssh connection's socket: short, and out of other users' reach."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from dlctl.errors import ConnectError

_LONGEST_BYTES = 104
"""The longest path of a socket on macOS; Linux allows 108."""
_OPENING_BYTES = 18
"""While ssh opens the connection, it appends a dot and 16 letters; and a path ends with a NUL."""
_DIGEST_LETTERS = 16


def control_path(*words: str) -> Path:
    """Return the path for the connection that these words name; its folder is there.

    Raises:
        ConnectError: there is no folder that is ours alone and has a short path.
    """
    name = hashlib.sha256("\0".join(words).encode()).hexdigest()[:_DIGEST_LETTERS]
    tried = []
    for folder in _folders():
        path = folder / name
        if len(os.fsencode(path)) + _OPENING_BYTES > _LONGEST_BYTES:
            tried.append(f"{folder} has too long a path")
        elif problem := _problem(folder):
            tried.append(f"{folder} {problem}")
        else:
            return path
    raise ConnectError(
        f"this machine: no folder can hold the connection's socket: {'; '.join(tried)}",
        hint="Set XDG_RUNTIME_DIR to a folder of yours with a short path.",
    )


def _folders() -> list[Path]:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    own = [Path(runtime, "dlctl")] if runtime else []
    return [*own, Path("/tmp", f"dlctl-{os.getuid()}")]  # noqa: S108 - checked to be ours


def _problem(folder: Path) -> str:
    """Return why a folder can't be used, after having made it; empty: it can."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        return f"can't be made: {error.strerror}"
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        return "belongs to somebody else"
    if found.st_mode & 0o077:
        return "is open to other users"
    return ""
