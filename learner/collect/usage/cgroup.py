"""The memory of the job's control group: how much it may use, and how much it uses."""

from __future__ import annotations

from pathlib import Path

from dlctl.contract.measured import utilisation as names
from learner.collect.usage.files import KernelFile, counters, open_file, read_number

_NO_LIMIT = 1 << 60
"""Version 1 shows the largest number of pages if there is no limit."""


class MemoryGroup:
    """The group with the smallest limit among a process's own and those around it."""

    def __init__(
        self, pid: int, proc: Path = Path("/proc"), tree: Path = Path("/sys/fs/cgroup")
    ) -> None:
        self._limit: KernelFile | None = None
        self._used: KernelFile | None = None
        self._details: KernelFile | None = None
        self._droppable = b""
        found = _folder_v2(pid, proc, tree) or _folder_v1(pid, proc, tree)
        if found is None:
            return
        folder, version = found
        old = version == 1
        self._limit = open_file(folder / ("memory.limit_in_bytes" if old else "memory.max"))
        self._used = open_file(folder / ("memory.usage_in_bytes" if old else "memory.current"))
        self._details = open_file(folder / "memory.stat")
        self._droppable = b"total_inactive_file" if old else b"inactive_file"

    def sample(self) -> dict[str, float]:
        """Return the limit and the use; nothing without a limit."""
        limit, used = read_number(self._limit), read_number(self._used)
        if limit is None or used is None:
            return {}
        droppable = counters(self._details, b" ").get(self._droppable, 0)
        return {
            names.CGROUP_MEMORY_BYTES: float(max(0, used - droppable)),
            names.CGROUP_MEMORY_LIMIT_BYTES: float(limit),
        }


def _folder_v2(pid: int, proc: Path, tree: Path) -> tuple[Path, int] | None:
    place = _place(pid, proc, "")
    return None if place is None else _tightest(tree, place, "memory.max", 2)


def _folder_v1(pid: int, proc: Path, tree: Path) -> tuple[Path, int] | None:
    place = _place(pid, proc, "memory")
    if place is None:
        return None
    return _tightest(tree / "memory", place, "memory.limit_in_bytes", 1)


def _place(pid: int, proc: Path, controller: str) -> str | None:
    """Return the path of a process's group; `controller` is empty in version 2."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text(errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        fields = line.split(":", 2)
        if len(fields) == 3 and controller in fields[1].split(","):
            return fields[2]
    return None


def _tightest(tree: Path, place: str, limit_file: str, version: int) -> tuple[Path, int] | None:
    """Return the folder with the smallest limit, from the process's own up to the tree's root."""
    best: tuple[int, Path] | None = None
    # In a container the path is often the host's, and the tree's root is the container's group.
    own = tree / place.strip("/")
    for folder in [own, *own.parents]:
        if not folder.is_relative_to(tree):
            break
        file = open_file(folder / limit_file)
        limit = read_number(file)
        if file is not None:
            file.close()
        if limit is not None and limit < _NO_LIMIT and (best is None or limit < best[0]):
            best = limit, folder
    return None if best is None else (best[1], version)
