"""Find the newest checkpoint of a program in CHECKPOINT_DIR, by the names that dlctl goes by."""

from __future__ import annotations

import json
import os
from pathlib import Path

from dlctl import contract
from dlctl.contract.own_checkpoints import MARKER
from learner.frameworks import own_checkpoints


def checkpoint_dir() -> Path:
    """Return CHECKPOINT_DIR."""
    return Path(os.environ["CHECKPOINT_DIR"]).resolve()


def newest(pattern: str | None = None, folder: Path | None = None) -> Path | None:
    """Return the newest complete checkpoint, a file or a folder; None if there is none.

    Args:
        pattern: Which names are checkpoints, such as `checkpoint-*`; any name with a number if
            there is none.
        folder: CHECKPOINT_DIR if there is none.
    """
    root = folder or checkpoint_dir()
    found = own_checkpoints.newest(root, pattern)
    return None if found is None else root / found.name


def is_marked(checkpoint: Path) -> bool:
    """Return whether a folder has `complete.json`."""
    return (checkpoint / MARKER).is_file()


def mark_complete(checkpoint: Path) -> None:
    """Write `complete.json` into the folder of a checkpoint, with the sizes of all of its files.

    From the first one on, folders without it don't count: a program was killed while it wrote them.
    """
    paths = [path for path in sorted(checkpoint.rglob("*")) if path.is_file()]
    sizes = {
        path.relative_to(checkpoint).as_posix(): {"size_bytes": path.stat().st_size}
        for path in paths
        if path.name != MARKER
    }
    contract.write_whole(checkpoint / MARKER, json.dumps({"files": sizes}) + "\n")
