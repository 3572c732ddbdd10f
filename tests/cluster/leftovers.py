"""Find what a test session left behind: processes, ports, mounts, clusters, common files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from cluster import FOLDER_PREFIX, parent_folder

SESSION_VARIABLE = "DLCTL_TEST_SESSION"
"""Every process that the session starts inherits it, so it is known by its environment."""


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _processes() -> Iterator[Path]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            yield entry


def _is_zombie(process: Path) -> bool:
    return _read(process / "stat").rpartition(b") ")[2][:1] in (b"Z", b"")


def _describe(process: Path) -> str:
    command = _read(process / "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
    return f"process {process.name}: {command[:200]}"


def session_processes(token: str) -> list[str]:
    """Return the living processes that have the session's token in their environment.

    A process's listening ports go with it, so a port is never left without its process.
    """
    mark = f"{SESSION_VARIABLE}={token}".encode()
    return [
        _describe(process)
        for process in _processes()
        if mark in _read(process / "environ").split(b"\0") and not _is_zombie(process)
    ]


def mounts(token: str) -> list[str]:
    """Return the mounts, in any process's namespace, that name a cluster of this session."""
    folders = [str(folder).encode() for folder in session_clusters(token)]
    return [
        f"mount of {folder.decode()} seen by {_describe(process)}"
        for process in _processes()
        for folder in folders
        if folder in _read(process / "mountinfo")
    ]


def session_clusters(token: str) -> list[Path]:
    """Return the folders of this session's clusters that still exist."""
    return [
        folder
        for folder in parent_folder().glob(f"{FOLDER_PREFIX}*")
        if _read(folder / "session").decode() == token
    ]


def common_files() -> set[str]:
    """Return the paths of what tests may have made in common folders: shared memory and /tmp."""
    paths = [*Path("/dev/shm").glob("*"), *Path("/tmp").glob("dl-*"), *Path("/tmp").glob("dlctl-*")]
    connections = Path("/tmp", f"dlctl-{os.getuid()}")  # dlctl's own, for all commands of a user
    return {str(path) for path in paths if path != connections and _is_ours(path)}


def _is_ours(path: Path) -> bool:
    try:
        return os.getuid() in (0, path.lstat().st_uid)  # root's tests act for other users, too
    except OSError:
        return False


def _used_by_others(path: str) -> bool:
    """Return whether a living process maps it or has it open: then it was not left behind."""
    for process in _processes():
        if path.encode() in _read(process / "maps"):
            return True
        try:
            if any(str(link.readlink()) == path for link in (process / "fd").iterdir()):
                return True
        except OSError:
            continue
    return False


def another_session_runs(token: str) -> bool:
    """Return whether tests run beside these: then nobody can tell whose files these are."""
    other, own = f"{SESSION_VARIABLE}=".encode(), f"{SESSION_VARIABLE}={token}".encode()
    return any(
        variable.startswith(other) and variable not in (own, other)
        for process in _processes()
        for variable in _read(process / "environ").split(b"\0")
    )


def left_behind(token: str, files_before: set[str]) -> list[str]:
    """Return one line for each thing that the session left behind."""
    new = [] if another_session_runs(token) else sorted(common_files() - files_before)
    return [
        *session_processes(token),
        *mounts(token),
        *(f"folder {folder}" for folder in session_clusters(token)),
        *(path for path in new if not _used_by_others(path)),
    ]
