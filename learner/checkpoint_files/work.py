"""Carry out an order: write this learner's share and, on rank 0, complete the checkpoint.

Done by the writer process; by the learner itself where there is no writer. No torch here.
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
    """Write one learner's share and its record; return why it could not be done."""
    share = order.temporary / layout.share_file(order.rank)
    try:
        disk.make_directory(order.temporary)
        record = write_share(share, order.rank, pieces, disk)
        disk.sync_directory(order.temporary)
        disk.write_file(order.temporary / layout.record_file(order.rank), layout.to_bytes(record))
    except OSError as error:
        remove_quietly(share, disk)  # gives a full disk the room for the next line
        problem = str(error) or type(error).__name__
        leave_failure(order, problem, disk)
        return problem
    return None


def leave_failure(order: Order, problem: str, disk: Disk) -> None:
    """Tell rank 0's writer that there will be no share; the learners tell each other too."""
    with contextlib.suppress(OSError):
        disk.make_directory(order.temporary)
        disk.write_file(order.temporary / layout.failure_file(order.rank), problem.encode())


def complete(
    order: Order, tree: bytes, disk: Disk, may_wait: Callable[[float], None]
) -> tuple[str | None, list[str]]:
    """Complete the checkpoint (rank 0); return why it could not be done, and warnings."""
    try:
        return None, publish(order, tree, disk, may_wait)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return str(error) or type(error).__name__, []
