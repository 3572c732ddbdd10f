"""Memory: what this node and its cgroups have left, and what malloc keeps."""

from __future__ import annotations

import contextlib
import ctypes
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dlctl.contract.ground.processes import boot_id

_NO_LIMIT_BYTES = 1 << 60
"""Above it, cgroup v1 means that there is no limit."""
_LARGEST_PART = 0.8
"""The share of the free memory that all snapshots together may use."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Settings of mallopt(3)."""
_LARGEST_MMAP_THRESHOLD = 32 * 1024**2
"""The largest value that glibc accepts."""
_TRIM_BYTES = 2**31 - 1


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


@dataclass(frozen=True)
class MemoryRequest:
    """The memory that one learner requests; those of a node allocate at the same time."""

    more_bytes: int
    left_bytes: dict[str, int] = field(default_factory=dict)
    """The bytes left under each limit that applies to the learner, by the limit's name. Learners
    under the same limit use the same name."""


def have_room(requests: Sequence[MemoryRequest]) -> list[bool]:
    """Return for each learner whether there is enough memory for its request."""
    wanted: Counter[str] = Counter()
    left: dict[str, int] = {}
    for request in requests:
        for name, left_bytes in request.left_bytes.items():
            wanted[name] += request.more_bytes
            left[name] = min(left_bytes, left.get(name, left_bytes))
    full = {name for name in left if wanted[name] > _LARGEST_PART * left[name]}
    return [each.more_bytes == 0 or not full & each.left_bytes.keys() for each in requests]


def keep_freed_memory() -> bool:
    """Have malloc keep freed blocks of up to 32 MiB; return whether this C library can.

    glibc maps large blocks afresh and gives them back at once, so each step's activations and
    gradients are faulted in page by page. Measured (10 M-parameter MLP, batch 64, one thread): 4000
    to 8000 page faults a step and 61-73 ms with glibc's own thresholds, none and 56-58 ms so.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(
        mallopt(M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
        and mallopt(M_TRIM_THRESHOLD, _TRIM_BYTES)
    )
