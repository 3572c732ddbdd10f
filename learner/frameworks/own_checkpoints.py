"""A program's own checkpoints on the node: find them, and read them through. Without torch.

`python -m learner.frameworks.own_checkpoints verify <job dir> <pattern> [STEP …]` answers as
`learner.checkpoint.tool` does. dlctl can't know the format of every framework: it checks that each
file can be read and is not empty, the sizes and checksums in `complete.json` if the program wrote
that, and the checksums that zip files have, such as those of torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import zipfile
import zlib
from pathlib import Path
from typing import Any

from dlctl import contract
from dlctl.contract.own_checkpoints import (
    MARKER,
    OwnCheckpoint,
    SavedFile,
    own_checkpoints,
    saved_entries,
)
from dlctl.contract.programs.answers import run
from learner.errors import UserFault

MOST_FILES = 100_000
_BLOCK_BYTES = 4 * 1024**2


def files_below(root: Path) -> list[SavedFile]:
    """Return the files below a folder; what vanishes meanwhile is left out."""
    found: list[SavedFile] = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name[:1] != "."]
        for name in names:
            path = Path(folder, name)
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                relative = path.relative_to(root).as_posix()
                found.append(SavedFile(relative, status.st_size, status.st_mtime))
        if len(found) > MOST_FILES:
            break
    return found


def newest(root: Path, pattern: str | None) -> OwnCheckpoint | None:
    """Return a program's newest complete checkpoint; None if there is none."""
    found = own_checkpoints(files_below(root), pattern)
    return next((checkpoint for checkpoint in found if checkpoint.complete), None)


def main(arguments: list[str]) -> list[dict[str, Any]]:
    """Return what is wrong with each checkpoint, newest first.

    Raises:
        UserFault: there is no such checkpoint, or the arguments are invalid.
    """
    if len(arguments) < 3 or arguments[0] != "verify":
        raise UserFault("usage: verify <job dir> <pattern> [STEP …]")
    root, steps = Path(arguments[1], contract.CHECKPOINTS), [int(step) for step in arguments[3:]]
    files = files_below(root)
    found = own_checkpoints(files, arguments[2] or None) or saved_entries(files)
    for step in steps:
        if step not in [checkpoint.step for checkpoint in found]:
            raise UserFault(f"there is no checkpoint of step {step} in {root}")
    return [
        {"step": each.step, "name": each.name, "problem": problem(root, each)}
        for each in found
        if not steps or each.step in steps
    ]


def problem(root: Path, checkpoint: OwnCheckpoint) -> str | None:
    """Return what is wrong with a checkpoint; None if nothing is found."""
    if checkpoint.complete is False:
        return f"{MARKER} is missing"
    try:
        for name, wanted in _marker(root / checkpoint.name).items():
            if f"{checkpoint.name}/{name}" not in checkpoint.files:
                return f"{name} is missing"
            if (wrong := _differs(root / checkpoint.name / name, wanted)) is not None:
                return f"{name} {wrong}"
        for file in checkpoint.files:
            if (wrong := _unreadable(root / file)) is not None:
                return f"{file} {wrong}"
    except OSError as error:
        return f"{error.filename} can't be read: {error.strerror}"
    except (ValueError, TypeError, AttributeError) as error:
        return f"{MARKER} can't be understood: {error}"
    return None


def _marker(folder: Path) -> dict[str, dict[str, Any]]:
    if not folder.is_dir() or not (folder / MARKER).exists():
        return {}
    return dict(json.loads((folder / MARKER).read_bytes() or b"{}").get("files", {}))


def _differs(path: Path, wanted: dict[str, Any]) -> str | None:
    size, crc, sha = 0, 0, hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            size, crc = size + len(block), zlib.crc32(block, crc)
            sha.update(block)
    if wanted.get("size_bytes") not in (None, size):
        return f"has {size} bytes, not {wanted['size_bytes']}"
    if wanted.get("crc32") not in (None, crc) or wanted.get("sha256") not in (
        None,
        sha.hexdigest(),
    ):
        return "does not match its checksum"
    return None


def _unreadable(path: Path) -> str | None:
    if zipfile.is_zipfile(path):
        try:
            with zipfile.ZipFile(path) as archive:
                damaged = archive.testzip()
        except zipfile.BadZipFile as error:
            return f"is a damaged zip file: {error}"
        return None if damaged is None else f"does not match its checksum in {damaged}"
    if path.suffix in (".pt", ".pth", ".ckpt", ".npz", ".keras") and path.stat().st_size:
        with path.open("rb") as file:
            if file.read(2) == b"PK":
                return "is cut off: its zip directory is missing"
    with path.open("rb") as file:
        while file.read(_BLOCK_BYTES):
            pass
    return None


if __name__ == "__main__":
    sys.exit(run(main))
