"""Make a checkpoint of the shares: wait for all records, then marker, rename, prune. Rank 0 only.

The writers meet through files in the temporary directory alone, never through MPI.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from learner.checkpoint import layout
from learner.checkpoint.disk import Disk
from learner.checkpoint.layout import FileRecord, Marker

LEAST_KEPT = 2
"""With one kept, a fault in the newest would lose everything."""
_LONGEST_PAUSE_S = 0.2


class ShareMissing(OSError):
    """A learner's share could not be written."""


@dataclass(frozen=True)
class Order:
    """One checkpoint to be written, as every writer gets it."""

    root: Path
    step: int
    token: str
    """Tells the temporary directories of different attempts apart."""
    rank: int
    learners: int
    settings: dict[str, int] = field(default_factory=dict)
    epoch: int | None = None
    keep: int = LEAST_KEPT
    keep_every_steps: int | None = None

    @property
    def temporary(self) -> Path:
        """Return where it is written."""
        name = layout.directory_name(self.step)
        return self.root / f"{layout.TEMPORARY_PREFIX}{name}-{self.token}"


def publish(order: Order, tree: bytes, disk: Disk, may_wait: Callable[[float], None]) -> list[str]:
    """Complete a checkpoint; return warnings about what is not part of it.

    Args:
        order: What was asked for.
        tree: The content of state.json.
        disk: What is written to.
        may_wait: Waits so many seconds; raises `ShareMissing` where no share is worth waiting for.

    Raises:
        OSError: it could not be completed; nothing of it is left.
    """
    try:
        files = {layout.TREE_FILE: FileRecord(len(tree), zlib.crc32(tree))}
        disk.write_file(order.temporary / layout.TREE_FILE, tree)
        files |= _wait_for_shares(order, may_wait)
        marker = Marker(
            order.step, order.learners, files, order.settings, order.epoch, time.time(),
            kept_for_ever=_is_kept_for_ever(order.root, order.step, order.keep_every_steps),
        )  # fmt: skip
        disk.write_file(order.temporary / layout.MARKER_FILE, layout.to_bytes(marker))
        disk.sync_directory(order.temporary)
        _rename(order.temporary, order.root / layout.directory_name(order.step), disk)
    except OSError:
        remove_quietly(order.temporary, disk)
        raise
    try:
        prune(order.root, order.step, order.keep, disk)
    except OSError as error:  # the checkpoint itself is safe
        return [f"old checkpoints can't be removed: {error}"]
    return []


def _wait_for_shares(order: Order, may_wait: Callable[[float], None]) -> dict[str, FileRecord]:
    """Return the records of the files of all shares, once all are there."""
    files: dict[str, FileRecord] = {}
    problems: dict[int, str] = {}
    missing, pause_s = set(range(order.learners)), 0.001
    while missing:
        for rank in sorted(missing):
            found = _look(order.temporary, rank, problems)
            if found is not None:
                files |= found
                missing.discard(rank)
        if missing:
            os.utime(order.temporary)  # NFS: look at the directory anew
            may_wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    if problems:
        rank, problem = min(problems.items())
        more = f" (and {len(problems) - 1} more learners)" if len(problems) > 1 else ""
        raise ShareMissing(f"the share of learner {rank}{more}: {problem}")
    return files


def _look(directory: Path, rank: int, problems: dict[int, str]) -> dict[str, FileRecord] | None:
    """Return the records of one learner's files (none if it failed), or None if not done yet."""
    names = {path.name for path in directory.glob(f"share-{rank}.*")}
    if layout.failure_file(rank) in names:
        problems[rank] = (directory / layout.failure_file(rank)).read_text(errors="replace")
        return {}
    if layout.record_file(rank) not in names:
        return None
    content = (directory / layout.record_file(rank)).read_bytes()
    record = layout.parse_record(content)
    return {
        layout.share_file(rank): FileRecord(record.size_bytes),
        layout.record_file(rank): FileRecord(len(content), zlib.crc32(content)),
    }


def _rename(temporary: Path, final: Path, disk: Disk) -> None:
    replaced = None
    if final.exists():  # damaged, or of a run that went back behind it
        replaced = final.parent / f"{temporary.name}-replaced"
        disk.rename(final, replaced)
    disk.rename(temporary, final)
    disk.sync_directory(final.parent)
    if replaced is not None:
        disk.remove(replaced)


def _is_kept_for_ever(root: Path, step: int, every: int | None) -> bool:
    """Return whether this is the first one at a multiple of `every` steps, or after it.

    One that is due at the multiple may be put off for a few steps by a writer that is busy.
    """
    if not every or step < every:
        return False
    alike = (s for s in layout.steps_present(root) if s < step and s // every == step // every)
    markers = (_marker(root / layout.directory_name(s)) for s in alike)
    return not any(marker is not None and marker.kept_for_ever for marker in markers)


def prune(root: Path, newest: int, keep: int, disk: Disk) -> None:
    """Remove all but the `keep` (at least two) newest checkpoints up to the step `newest`.

    Those that are kept for ever stay. Those of later steps are removed: they were found damaged
    when this run began before them.
    """
    kept = 0
    for step in layout.steps_present(root):
        directory = root / layout.directory_name(step)
        marker = _marker(directory) if step <= newest else None
        if marker is None or (kept >= max(keep, LEAST_KEPT) and not marker.kept_for_ever):
            disk.remove(directory)
        else:
            kept += 1


def remove_leftovers(root: Path, disk: Disk) -> None:
    """Remove what a crashed attempt left half written."""
    for path in root.glob(f"{layout.TEMPORARY_PREFIX}*"):
        disk.remove(path)


def remove_quietly(path: Path, disk: Disk) -> None:
    """Remove what is of no use; what stays is removed by the next attempt."""
    try:
        disk.remove(path)
    except OSError:
        return


def _marker(directory: Path) -> Marker | None:
    """Return the marker of a whole checkpoint, or None."""
    try:
        return layout.read_marker(directory)
    except layout.DamagedCheckpoint:
        return None
    except layout.OtherVersion:  # not ours to remove
        return Marker(0, 0, {}, kept_for_ever=True)
