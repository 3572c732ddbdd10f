"""The input and the result of a node's checks, and those of its folders and its memory.

The job directory and the node's own temporary folder must be writable, with room; the node must
have the memory that the job has asked for, and room in /dev/shm.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from dlctl.contract import NodeFault, Plan, VerdictKind, attempt_dir
from dlctl.contract.launchers import Ranks
from learner.job.batch import batch_system
from learner.system.files import FULL


@dataclass(frozen=True)
class Here:
    """The learner for which a node is checked."""

    plan: Plan
    job_dir: Path
    attempt: int
    ranks: Ranks

    @property
    def is_first(self) -> bool:
        """Return whether this is the first learner of its node, which checks what all share."""
        return self.ranks.local_rank == 0


@dataclass
class Findings:
    """The findings of a node's checks."""

    faults: list[NodeFault] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    """Sentences about what is odd and ends no training, without the node's name."""
    reached: list[int] = field(default_factory=list)
    """The nodes, by their number in the job, to which a connection worked."""
    unreached: list[int] = field(default_factory=list)
    """The nodes to which none worked, though they listen."""


_USUAL = "/tmp"  # noqa: S108 - TMPDIR's default
_PROBE_BYTES = 1 << 20
_LEAST_FREE_BYTES = 32 << 20


def check_temporary_folder(here: Here, found: Findings) -> None:
    """Check the node's own folder for temporary files, for which Python silently takes another."""
    if not here.is_first:
        return
    folder = Path(os.environ.get("TMPDIR") or _USUAL)
    if not folder.is_dir() and folder != Path(_USUAL):
        found.remarks.append(f"has no folder {folder}, which TMPDIR names")
        folder = Path(_USUAL)
    _check_folder(folder, found, own=True)


def check_job_directory(here: Here, found: Findings) -> None:
    """Check the job directory, which all nodes share."""
    if here.is_first:
        _check_folder(here.job_dir / attempt_dir(here.attempt), found, own=False)


def _check_folder(folder: Path, found: Findings, *, own: bool) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(os.urandom(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
        free = shutil.disk_usage(folder).free
    except OSError as error:
        if error.errno == errno.EFBIG:  # `ulimit -f` in the set-up: no fault of the node
            return
        full = error.errno in FULL
        what = f"has no space left in {folder}" if full else f"can't write to {folder}"
        if not full:
            what += f" ({error.strerror})"
        kind = VerdictKind.DISK_FULL if full else VerdictKind.SITE
        found.faults.append(NodeFault(kind, what, certain=own))
        return
    if own and free < _LEAST_FREE_BYTES:
        what = f"has only {free >> 20} MiB left in {folder}"
        found.faults.append(NodeFault(VerdictKind.DISK_FULL, what))


_SHARED = Path("/dev/shm")  # noqa: S108 - a file system of its own
_LEAST_SHARED_BYTES = 1 << 20
"""The need of a training is known later; less than this is as good as full."""
_LEAST_SHARE = 0.5
"""The share of the memory asked for that must be available: what Linux can free at once."""
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
    wanted = here.plan.resources.memory_bytes_per_node
    if not here.is_first or wanted is None or not batch_system(here.plan).allocates:
        return
    available = available_bytes()
    if available is None or available >= wanted:
        return
    what = f"has {available >> 20} MiB of memory available of the {wanted >> 20} MiB asked for"
    if available < _LEAST_SHARE * wanted:
        found.faults.append(NodeFault(VerdictKind.SITE, what))
    else:
        found.remarks.append(what)


def available_bytes() -> int | None:
    """Return how much memory the node has available; None if that is not known."""
    for line in _MEMORY.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return None
