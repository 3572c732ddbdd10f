"""Carry out an order: write this learner's share and, on rank 0, complete the checkpoint.

The writer process runs this, or the learner itself if it has no writer. Never imports torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from learner.checkpoint_files import layout
from learner.checkpoint_files.disk import Disk
from learner.checkpoint_files.publish import Order, publish, remove_quietly
from learner.checkpoint_files.share_format import Array
from learner.checkpoint_files.share_writer import write_share


def write_part(order: Order, pieces: Sequence[tuple[str, Array]], disk: Disk) -> str | None:
    """Write one learner's share and its record; return the error, or None on success."""
    share = order.temporary / layout.share_file(order.rank)
    try:
        disk.make_directory(order.temporary)
        record = write_share(share, order.rank, pieces, disk)
        disk.sync_directory(order.temporary)
        disk.write_file(order.temporary / layout.record_file(order.rank), layout.to_bytes(record))
    except OSError as error:
        remove_quietly(share, disk)  # on a full disk, makes space for the failure file
        problem = str(error) or type(error).__name__
        leave_failure(order, problem, disk)
        return problem
    return None


def leave_failure(order: Order, problem: str, disk: Disk) -> None:
    """Write the failure file, which tells rank 0's writer that there will be no share."""
    with contextlib.suppress(OSError):
        disk.make_directory(order.temporary)
        disk.write_file(order.temporary / layout.failure_file(order.rank), problem.encode())


def complete(
    order: Order, tree: bytes, disk: Disk, may_wait: Callable[[float], None]
) -> tuple[str | None, list[str]]:
    """Complete the checkpoint (rank 0); return the error, or None, and warnings."""
    try:
        return None, publish(order, tree, disk, may_wait)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return str(error) or type(error).__name__, []
