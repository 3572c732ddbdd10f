"""Check that the node has the memory that the job has asked for, and room in /dev/shm."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from dlctl.contract import NodeFault, VerdictKind
from learner.agent.health.base import Findings, Here
from learner.job.batch import batch_system

_SHARED = Path("/dev/shm")  # noqa: S108 - a file system of its own
_LEAST_SHARED_BYTES = 1 << 20
"""What a training needs is known later; this is as good as full."""
_LEAST_SHARE = 0.5
"""Of the memory asked for; Linux counts as available only what it can free at once."""
_MEMORY = Path("/proc/meminfo")


def check_shared_memory(here: Here, found: Findings) -> None:
    """Check /dev/shm, through which the learners of a node exchange."""
    if not here.is_first or not _SHARED.is_dir():
        return
    free = shutil.disk_usage(_SHARED).free
    if not os.access(_SHARED, os.W_OK):
        found.faults.append(NodeFault(VerdictKind.SITE, f"can't write to {_SHARED}"))
    elif free < _LEAST_SHARED_BYTES:
        what = f"has only {free >> 10} KiB left in {_SHARED}"
        found.faults.append(NodeFault(VerdictKind.SITE, what))


def check_memory(here: Here, found: Findings) -> None:
    """Compare the available memory with what the job has asked for on this node."""
    asked = here.plan.resources.memory_bytes_per_node
    if not here.is_first or asked is None or not batch_system(here.plan).allocates:
        return
    available = available_bytes()
    if available is None or available >= asked:
        return
    what = f"has {available >> 20} MiB of memory available of the {asked >> 20} MiB asked for"
    if available < _LEAST_SHARE * asked:
        found.faults.append(NodeFault(VerdictKind.SITE, what))
    else:
        found.remarks.append(what)


def available_bytes() -> int | None:
    """Return how much memory the node has available; None if that is not known."""
    for line in _MEMORY.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return None
