"""Check that the job directory and the node's own temporary folder can be written, with room."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from dlctl.contract import NodeFault, VerdictKind, attempt_dir
from learner.agent.health.base import Findings, Here
from learner.system.disk_reserve import FULL

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
    _check(folder, found, own=True)


def check_job_directory(here: Here, found: Findings) -> None:
    """Check the job directory, which all nodes share."""
    if here.is_first:
        _check(here.job_dir / attempt_dir(here.attempt), found, own=False)


def _check(folder: Path, found: Findings, *, own: bool) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(os.urandom(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
        free = shutil.disk_usage(folder).free
    except OSError as error:
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
