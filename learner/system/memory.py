"""How much more memory this process may use: what its node and its cgroups have left."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from dlctl.contract.ground.processes import boot_id

_NO_LIMIT_BYTES = 1 << 60
"""Above it, cgroup v1 means that there is no limit."""


@dataclass(frozen=True)
class _Names:
    """The file names of a cgroup version, and the reclaimable caches in its memory.stat."""

    limit: str
    used: str
    caches: tuple[str, str]


_V1 = _Names(
    "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")
)
_V2 = _Names("memory.max", "memory.current", ("inactive_file", "active_file"))


def memory_left(
    proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")
) -> dict[str, int]:
    """Return how many more bytes the node and each of its cgroups allow this process."""
    left: dict[str, int] = {}
    node = boot_id(proc)
    with contextlib.suppress(OSError, StopIteration):
        lines = (proc / "meminfo").read_text().splitlines()
        available = next(line for line in lines if line.startswith("MemAvailable:"))
        left[node] = int(available.split()[1]) * 1024
    with contextlib.suppress(OSError):
        for line in (proc / "self/cgroup").read_text().splitlines():
            _, kinds, name = line.split(":", 2)
            if kinds == "":
                mount, names = cgroups, _V2
            elif "memory" in kinds.split(","):
                mount, names = cgroups / "memory", _V1
            else:
                continue
            folder = _as_mounted(mount, Path(name.strip("/")))
            for place in (folder, *folder.parents):
                with contextlib.suppress(OSError, ValueError):
                    left[f"{node} {place.stat().st_ino}"] = _left_in(place, names)
    return left


def _as_mounted(mount: Path, name: Path) -> Path:
    """Return a cgroup's folder; a container sees only its own part of the tree, as the root."""
    for start in range(len(name.parts)):
        if (folder := mount.joinpath(*name.parts[start:])).is_dir():
            return folder
    return mount


def _left_in(folder: Path, names: _Names) -> int:
    """Return how many bytes a cgroup has left; raise OSError or ValueError if it has no limit."""
    limit_bytes = int((folder / names.limit).read_text())  # "max" is no limit
    if limit_bytes > _NO_LIMIT_BYTES:
        raise ValueError("no limit")
    left_bytes = limit_bytes - int((folder / names.used).read_text())
    # The usage includes the page cache, which the kernel reclaims on demand.
    pairs = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
    return left_bytes + sum(int(value) for name, value in pairs if name in names.caches)
