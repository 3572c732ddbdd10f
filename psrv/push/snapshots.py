"""Snapshots of shards: raw rows, one after another, in a file that is whole or absent.

A trailer says which request a snapshot answers. For a checkpoint learner 0 asks all primaries for
new ones: it writes a number into a file that the servers watch, and waits until each snapshot has
it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import torch

from dlctl.contract import snapshot_file, snapshot_request_file, whole_file, write_whole
from psrv.errors import ServerError
from psrv.push.waiting import Late, WaitPolicy, how_long, never, wait_until

_TRAILER = struct.Struct("=8sQ")
_MAGIC = b"DLrows1\n"


def write_snapshot(
    path: Path,
    blocks: Iterable[tuple[int, Sequence[torch.Tensor]]],
    count: int,
    request: int = 0,
    wanted: Callable[[], bool] = lambda: True,
) -> bool:
    """Write a snapshot; readers see the old one or this one, also after a crash.

    Args:
        path: Where.
        blocks: First element and all rows' parts of each block; together they are the shard.
        count: Elements of a row.
        request: The number of the request that it answers.
        wanted: Returns whether the snapshot is still wanted; called once all is written, which may
            take long.

    Returns:
        Whether it replaced the old one.

    Raises:
        OSError: It can't be written.
    """
    path.parent.mkdir(exist_ok=True)
    with suppress(_Unwanted), whole_file(path, 0o600) as file:
        end = 0
        for first, parts in blocks:
            for row, part in enumerate(parts):
                at = (row * count + first) * part.element_size()
                end = max(end, at + _write(file.fileno(), part, at))
        os.pwrite(file.fileno(), _TRAILER.pack(_MAGIC, request), end)
        os.fsync(file.fileno())  # which may take long
        if not wanted():
            raise _Unwanted
        return True
    return False


class _Unwanted(Exception):
    """Nobody wants the snapshot any more."""


def _write(descriptor: int, part: torch.Tensor, at: int) -> int:
    """Write a tensor at an offset in a file; return its size in bytes."""
    data, done = part.numpy().data.cast("B") if part.numel() else b"", 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], at + done)
    return done


def request_answered(path: Path) -> int:
    """Return the number of the request that a snapshot answers; 0 if none, or it is absent."""
    with suppress(OSError), path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TRAILER.size))
        trailer = file.read(_TRAILER.size)
        if len(trailer) == _TRAILER.size and trailer.startswith(_MAGIC):
            return int(_TRAILER.unpack(trailer)[1])
    return 0


def wanted_request(job_dir: Path, attempt: int) -> int:
    """Return the number of the newest request for snapshots; 0 if there is none."""
    with suppress(OSError, ValueError):
        return int((job_dir / snapshot_request_file(attempt)).read_text())
    return 0


def fresh_snapshots(
    job_dir: Path, attempt: int, shards: int, timeout_s: float, late: Late = never
) -> list[Path]:
    """Have all primaries write snapshots now, and wait for them; for one process at a time.

    Args:
        job_dir: The training's.
        attempt: Its number.
        shards: How many there are.
        timeout_s: How long to wait for all of them.
        late: Returns whether a halt leaves no more time to wait.

    Raises:
        ServerError: A primary has not answered in time, or can't be asked.
    """
    request = _ask(job_dir / snapshot_request_file(attempt))
    paths = [job_dir / snapshot_file(attempt, shard) for shard in range(shards)]
    missing, wait_policy = list(range(shards)), WaitPolicy(timeout_s, late=late)

    def all_there() -> bool:
        while missing and request_answered(paths[missing[0]]) >= request:
            missing.pop(0)
        return not missing

    if not wait_until(all_there, wait_policy):
        raise ServerError(
            f"no snapshot of shard {missing[0]} of the parameter server {how_long(wait_policy)}",
            hint="the log of its primary's server says why: see `dlctl logs`",
        )
    return paths


def _ask(path: Path) -> int:
    """Write the number of a new request, and return it.

    An unreadable number is an error, not 0: the answer to an old request would pass for a new one.
    """
    try:
        before = int(path.read_text()) if path.exists() else 0
        write_whole(path, f"{before + 1}\n")
    except (OSError, ValueError) as error:
        raise ServerError(f"snapshots can't be requested in {path}: {error}") from error
    return before + 1
