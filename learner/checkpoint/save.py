"""Write a checkpoint: whole under its final name, or not there at all."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from learner.checkpoint import layout
from learner.checkpoint.layout import Disk, Marker
from learner.checkpoint.tree import Packed

LEAST_KEPT = 2
"""With one kept, a fault in the newest would lose everything."""


def save(root: Path, step: int, packed: Packed, settings: dict[str, int], disk: Disk) -> Path:
    """Write the checkpoint after `step` steps and return its directory.

    A crash at any point leaves the earlier checkpoints as they were.

    Raises:
        OSError: the disk is full, or another fault of the file system. Nothing is left behind.
    """
    final = root / layout.directory_name(step)
    temporary = root / f"{layout.TEMPORARY_PREFIX}{final.name}-{socket.gethostname()}-{os.getpid()}"
    try:
        _write(temporary, step, packed, settings, disk)
        _publish(temporary, final, disk)
    except (OSError, RuntimeError) as error:  # h5py reports a full disk as either
        _remove_quietly(temporary, disk)
        if isinstance(error, OSError):
            raise
        raise OSError(str(error)) from error
    return final


def _write(
    temporary: Path, step: int, packed: Packed, settings: dict[str, int], disk: Disk
) -> None:
    disk.make_directory(temporary)
    state = temporary / layout.STATE_FILE
    disk.write_state(state, packed)
    files = {layout.STATE_FILE: disk.record(state)}
    disk.write_marker(temporary / layout.MARKER_FILE, Marker(step, files, settings))
    disk.sync_directory(temporary)


def _publish(temporary: Path, final: Path, disk: Disk) -> None:
    replaced = None
    if final.exists():  # damaged, or of a run that went back behind it
        replaced = final.parent / f"{temporary.name}-replaced"
        disk.rename(final, replaced)
    disk.rename(temporary, final)
    disk.sync_directory(final.parent)
    if replaced is not None:
        disk.remove(replaced)


def prune(root: Path, newest: int, keep: int, disk: Disk) -> None:
    """Remove all but the `keep` (at least two) newest checkpoints up to the step `newest`.

    Those of later steps are removed too: they were found damaged when this run began before them.
    """
    kept = 0
    for step in layout.steps_present(root):
        directory = root / layout.directory_name(step)
        if step <= newest and kept < max(keep, LEAST_KEPT) and _is_whole(directory):
            kept += 1
        else:
            disk.remove(directory)


def remove_leftovers(root: Path, disk: Disk) -> None:
    """Remove what a crashed attempt left half written."""
    for path in root.glob(f"{layout.TEMPORARY_PREFIX}*"):
        disk.remove(path)


def _is_whole(directory: Path) -> bool:
    try:
        layout.read_marker(directory)
    except layout.DamagedCheckpoint:
        return False
    return True


def _remove_quietly(path: Path, disk: Disk) -> None:
    try:
        disk.remove(path)
    except OSError:
        return  # the next start removes it
