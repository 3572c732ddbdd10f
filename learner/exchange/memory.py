"""Shared memory of a node's learners: one file in /dev/shm, mapped by all, without a name.

The name is removed as soon as all have mapped the file, so the kernel frees the memory with the
last of them, however they die. (An MPI window would be the same pages; but it needs an MPI with
one-sided communication, and its tensors are gone at MPI_Finalize.)
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import mmap
import os
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import torch

from learner.errors import UserFault
from learner.exchange.base import Group

FOLDER = Path("/dev/shm")  # noqa: S108 - shared memory is what it is for
_PAGE_BYTES = 4096
_LEFTOVER_AGE_S = 60
_COUNTER = itertools.count()
_LOCK = threading.Lock()


def fence() -> None:
    """Order earlier reads and writes of this thread before later ones, on any processor.

    Acquiring a lock keeps later accesses behind it, and releasing it keeps earlier ones before it;
    but inside the lock the two may still change places. So it is acquired twice. (x86 alone would
    not need it.)
    """
    with _LOCK:
        pass
    with _LOCK:
        pass


class NodeMemory:
    """Zeros, one region for each learner of the node (`regions`, uint8, in local rank order)."""

    def __init__(self, group: Group, bytes_per_learner: list[int]) -> None:
        padded = [max(1, -(-count // _PAGE_BYTES)) * _PAGE_BYTES for count in bytes_per_learner]
        self._mapping = _map(group, sum(padded))
        whole = torch.from_numpy(np.frombuffer(self._mapping, dtype=np.uint8))
        starts = itertools.accumulate([0, *padded])
        self.regions = [
            whole[start : start + count]
            for start, count in zip(starts, bytes_per_learner, strict=False)
        ]


def can_share(group: Group) -> bool:
    """Return whether the learners of every node really see one /dev/shm."""
    path = FOLDER / _name()
    leader = group.topology.local_rank == 0
    if leader:
        with contextlib.suppress(OSError):
            path.touch(exist_ok=False)
    found = group.node_share((str(path), _identity(path)))
    is_shared = found[1] is not None and _identity(Path(found[0])) == found[1]
    everywhere = all(group.collect(is_shared))
    if leader:
        path.unlink(missing_ok=True)
    return everywhere


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _name() -> str:
    return f"dlctl-{os.getuid()}-memory-{os.getpid()}-{next(_COUNTER)}"


def _map(group: Group, size_bytes: int) -> mmap.mmap:
    leader = group.topology.local_rank == 0
    made: tuple[str, str] = ("", "")
    if leader:
        _remove_leftovers()
        made = _create(FOLDER / _name(), size_bytes)
    path, problem = group.node_share(made)
    try:
        problems = [text for text in group.collect(problem) if text]
        if problems:
            raise UserFault(
                problems[0],
                hint="make /dev/shm larger, use fewer learners on a node, or exchange: mpi",
            )
        descriptor = os.open(path, os.O_RDWR)
        try:
            mapping = mmap.mmap(descriptor, size_bytes)
        finally:
            os.close(descriptor)
        group.node_barrier()
        return mapping
    finally:
        if leader and path:
            Path(path).unlink(missing_ok=True)


def _create(path: Path, size_bytes: int) -> tuple[str, str]:
    """Make the file with all its pages: a full /dev/shm is an error now, not a SIGBUS later."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        return "", f"{FOLDER} can't be used: {error.strerror}"
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError as error:
        why = "is too small" if error.errno == errno.ENOSPC else f"can't be used ({error.strerror})"
        return str(path), (
            f"{FOLDER} {why}: {size_bytes / 2**20:,.0f} MiB are needed, "
            f"{shutil.disk_usage(FOLDER).free / 2**20:,.0f} MiB are free"
        )
    finally:
        os.close(descriptor)
    return str(path), ""


def _remove_leftovers() -> None:
    """Remove files of processes that died between making and unlinking."""
    for path in FOLDER.glob(f"dlctl-{os.getuid()}-memory-*"):
        pid = path.name.split("-")[3]
        with contextlib.suppress(OSError):
            # a process in another container has no number here, but its file is young
            old = time.time() - path.stat().st_mtime > _LEFTOVER_AGE_S
            if old and pid.isdecimal() and not Path(f"/proc/{pid}").exists():
                path.unlink(missing_ok=True)
