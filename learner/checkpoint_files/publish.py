"""Publish a checkpoint on rank 0: wait for all records, write the marker, rename, prune.

The writers communicate only through files in the temporary directory, never through MPI.
"""

from __future__ import annotations

import json
import math
import os
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dlctl import contract
from learner.checkpoint_files import layout
from learner.checkpoint_files.disk import Disk
from learner.checkpoint_files.layout import FileRecord, Marker, ShareRecord
from learner.system.files import put_back, put_in_place

LEAST_KEPT = 2
"""If only one were kept, damage to the newest would lose everything."""
_LONGEST_PAUSE_S = 0.2


class ShareMissing(OSError):
    """A learner's share could not be written."""


@dataclass(frozen=True)
class Order:
    """An order to write one checkpoint, as every writer receives it."""

    root: Path
    step: int
    token: str
    """Distinguishes the temporary directories of attempts, and of the saves in one attempt."""
    rank: int
    learners: int
    settings: dict[str, int] = field(default_factory=dict)
    epoch: int | None = None
    keep: int = LEAST_KEPT
    keep_every_steps: int | None = None
    successor: str = ""
    """A file that exists once a later attempt has begun: then nothing is published any more."""
    damaged: list[int] = field(default_factory=list)
    """Later steps whose checkpoints this run found damaged, and which are to be removed."""

    @property
    def temporary(self) -> Path:
        """Return the directory in which the checkpoint is written."""
        name = layout.directory_name(self.step)
        return self.root / f"{layout.TEMPORARY_PREFIX}{name}-{self.token}"

    @property
    def final(self) -> Path:
        """Return the directory that the checkpoint then is."""
        return self.root / layout.directory_name(self.step)


def complete(
    order: Order, tree: bytes, disk: Disk, may_wait: Callable[[float], None]
) -> tuple[str | None, list[str]]:
    """Complete the checkpoint on rank 0, or remove it.

    Args:
        order: the checkpoint to complete.
        tree: the content of state.json.
        disk: the disk to write to.
        may_wait: waits for the given seconds, or raises `ShareMissing` if waiting is pointless.

    Returns:
        The error, or None; and warnings that do not concern the checkpoint itself.
    """
    try:
        files = {layout.TREE_FILE: FileRecord(len(tree), zlib.crc32(tree))}
        disk.write_file(order.temporary / layout.TREE_FILE, tree)
        shares = _wait_for_shares(order, may_wait)
        _check_covered(json.loads(tree)["leaves"], [record for _, record in shares])
        for own, _ in shares:
            files |= own
        marker = Marker(
            order.step, order.learners, files, order.settings, order.epoch, time.time(),
            kept_for_ever=_is_kept_for_ever(order.root, order.step, order.keep_every_steps),
        )  # fmt: skip
        disk.write_file(order.temporary / layout.MARKER_FILE, layout.to_bytes(marker))
        disk.sync_directory(order.temporary)
        if _is_late(order):
            raise OSError("a later attempt of this training has begun, and owns its checkpoints")
        _rename(order.temporary, order.final, disk)
    except Exception as error:
        remove_quietly(order.temporary, disk)
        if not isinstance(error, (OSError, ValueError, KeyError, TypeError)):
            raise
        return str(error) or type(error).__name__, []
    try:
        later = not _is_late(order) and prune(order, disk)
    except OSError as error:  # the checkpoint itself is safe
        return None, [f"old checkpoints can't be removed: {error}"]
    return None, [_LATER.format(order.root)] if later else []


_LATER = "{} holds checkpoints of later steps too: they stay, and the next start takes the newest"
_Share = tuple[dict[str, FileRecord], ShareRecord]
"""The records of a share's two files, and the learner's `ShareRecord`."""


def _wait_for_shares(order: Order, may_wait: Callable[[float], None]) -> list[_Share]:
    """Wait for all shares, and return them."""
    shares: list[_Share] = []
    problems: dict[int, str] = {}
    missing, pause_s = set(range(order.learners)), 0.001
    while missing:
        names = {path.name for path in order.temporary.iterdir()}
        for rank in sorted(missing):
            if layout.failure_file(rank) in names:
                path = order.temporary / layout.failure_file(rank)
                problems[rank] = path.read_text(errors="replace")
            elif layout.record_file(rank) in names:
                shares.append(_share(order.temporary, rank))
            else:
                continue
            missing.discard(rank)
        if missing:
            os.utime(order.temporary)  # makes NFS read the directory again
            may_wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    if problems:
        rank, problem = min(problems.items())
        more = f" (and {len(problems) - 1} more learners)" if len(problems) > 1 else ""
        raise ShareMissing(f"the share of learner {rank}{more}: {problem}")
    return shares


def _share(directory: Path, rank: int) -> _Share:
    content = (directory / layout.record_file(rank)).read_bytes()
    record = layout.parse_record(content)
    files = {
        layout.share_file(rank): FileRecord(record.size_bytes),
        layout.record_file(rank): FileRecord(len(content), zlib.crc32(content)),
    }
    return files, record


def _check_covered(leaves: list[dict[str, Any]], records: list[ShareRecord]) -> None:
    """Refuse an incomplete checkpoint while the older ones still exist."""
    ranges: list[list[tuple[int, int]]] = [[] for _ in leaves]
    for record in records:
        for piece in record.pieces:
            number, _, start = piece.name.partition(":")
            if number.isdecimal():
                begin = int(start) * leaves[int(number)]["item_bytes"]
                end = begin + piece.count * np.dtype(piece.dtype).itemsize
                ranges[int(number)].append((begin, end))
    for leaf, covered in zip(leaves, ranges, strict=True):
        size_bytes = math.prod(leaf["shape"]) * leaf["item_bytes"]
        if (known := layout.covered_bytes(covered)) != size_bytes:
            raise ValueError(f"the learners have {known} of {size_bytes} bytes of {leaf['name']}")


def _is_late(order: Order) -> bool:
    """Return whether a later attempt has begun, which takes the temporary folders of this one.

    A writer that is stopped after this check must not touch what its successor has published since.
    """
    if not order.successor:
        return False
    contract.refresh(Path(order.successor).parent)
    return Path(order.successor).exists()


def _rename(temporary: Path, final: Path, disk: Disk) -> None:
    """Give a checkpoint its name, also in the place of one that is damaged or of another run."""
    _kept.discard(final)
    replaced = layout.replaced(temporary, final)
    was_there = put_in_place(temporary, final, replaced, disk.rename)
    disk.sync_directory(final.parent)
    if was_there:
        disk.remove(replaced)


def _is_kept_for_ever(root: Path, step: int, every: int | None) -> bool:
    """Return whether this is the first checkpoint at or after a multiple of `every` steps.

    A busy writer may postpone the one that is due at the multiple by a few steps.
    """
    if not every or step < every:
        return False
    alike = (s for s in layout.steps_present(root) if s < step and s // every == step // every)
    return not any(_stays(root / layout.directory_name(s)) for s in alike)


def prune(order: Order, disk: Disk) -> bool:
    """Remove all but the `keep` (at least two) newest checkpoints up to this order's step.

    Checkpoints that are kept forever stay. Of later steps, only those that this run found damaged
    are removed: the others belong to another run. What was published after this order's checkpoint
    is a later attempt's, and stays.

    Returns:
        Whether checkpoints of later steps remain.
    """
    kept, later = 0, False
    published_at_ns = order.final.stat().st_mtime_ns
    for step in layout.steps_present(order.root):
        directory = order.root / layout.directory_name(step)
        if step > order.step:
            removed = step in order.damaged and _remove_older(
                directory, published_at_ns, order, disk
            )
            later = later or not removed
            continue
        stays = _stays(directory)
        if stays is None or (kept >= max(order.keep, LEAST_KEPT) and not stays):
            _remove_older(directory, published_at_ns, order, disk)
        else:
            kept += 1
    return later


def _remove_older(directory: Path, published_at_ns: int, order: Order, disk: Disk) -> bool:
    """Remove a checkpoint unless it is newer; return whether that was done.

    It is judged where nobody can replace it.
    """
    aside = layout.replaced(order.temporary, directory)
    try:
        disk.rename(directory, aside)
    except FileNotFoundError:
        return True
    if aside.stat().st_mtime_ns > published_at_ns:
        put_back(aside, directory)
        return False
    disk.remove(aside)
    return True


def remove_leftovers(root: Path, disk: Disk) -> None:
    """Remove the unfinished checkpoints of a crashed attempt."""
    layout.disown_leftovers(root)
    for path in root.glob(f"{layout.REMOVED_PREFIX}*"):
        disk.remove(path)


def remove_quietly(path: Path, disk: Disk) -> None:
    """Remove a file or directory if possible; the next attempt removes what remains."""
    try:
        disk.remove(path)
    except OSError:
        return


_kept: set[Path] = set()
"""Checkpoints that this process knows to be kept forever, so that no save reads them again."""


def _stays(directory: Path) -> bool | None:
    """Return whether a checkpoint is kept forever, or None if it is not complete."""
    if directory in _kept:
        return True
    try:
        stays = layout.read_marker(directory).kept_for_ever
    except layout.DamagedCheckpoint:
        return None
    except layout.OtherVersion:  # belongs to another version of dlctl
        return True
    if stays:
        _kept.add(directory)
    return stays
