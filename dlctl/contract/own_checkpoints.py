"""Find a program's own checkpoints, and their steps, among the files of CHECKPOINT_DIR. Pure.

A program of any framework saves as it likes. A pattern (`checkpoint.files` of the manifest, or the
framework's) says which files or folders are checkpoints; the last number of a name is the step. A
folder is complete at once, or, if any of them has a file `complete.json`, once it has that file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

MARKER = "complete.json"
ANY = "*"
"""The pattern of a program that says none: whatever has a number in its name."""
_STEP = re.compile(r"(\d+)(?:\.[A-Za-z][\w-]*)*$")
_UNFINISHED = re.compile(r"(^|/)\.|(^|[._-])(tmp|part|partial|incomplete)\b", re.IGNORECASE)


@dataclass(frozen=True)
class SavedFile:
    """A file below CHECKPOINT_DIR."""

    path: str
    """Relative to CHECKPOINT_DIR."""
    size_bytes: int
    written_at: float
    """Unix seconds."""


@dataclass(frozen=True)
class OwnCheckpoint:
    """A checkpoint that a program has written in its own form."""

    name: str
    """Relative to CHECKPOINT_DIR."""
    step: int | None
    """None if the name has no number: the program overwrites the one checkpoint it has."""
    size_bytes: int
    written_at: float
    complete: bool | None
    """None: nothing tells which files are a checkpoint, and when they are whole."""
    files: tuple[str, ...]


def own_checkpoints(files: Iterable[SavedFile], pattern: str | None) -> list[OwnCheckpoint]:
    """Return the checkpoints among all files below CHECKPOINT_DIR, newest first."""
    wanted = pattern or ANY
    fine = [file for file in files if not _UNFINISHED.search(file.path)]
    found: dict[str, list[SavedFile]] = {}
    for file in fine:
        name = _match(file.path, wanted)
        if name is not None and (pattern is not None or _STEP.search(name)):
            found.setdefault(name, []).append(file)
    for name, own in found.items():
        if own[0].path == name:  # a file, with those beside it that are a part of it
            stem = f"{name[: _stem_length(name)]}."
            own += [each for each in fine if each.path.startswith(stem) and each.path != name]
    marked = any(file.path.endswith(f"/{MARKER}") for own in found.values() for file in own)
    checkpoints = [_checkpoint(name, own, marked=marked) for name, own in found.items()]
    return sorted(checkpoints, key=lambda c: (c.step or 0, c.written_at), reverse=True)


def saved_entries(files: Iterable[SavedFile]) -> list[OwnCheckpoint]:
    """Return the files and folders in CHECKPOINT_DIR, if no name there is one of a checkpoint's.

    The newest comes first.
    """
    found: dict[str, list[SavedFile]] = {}
    for file in files:
        if not _UNFINISHED.search(file.path):
            found.setdefault(file.path.partition("/")[0], []).append(file)
    entries = [replace(_checkpoint(name, own, marked=False), step=None, complete=None)
               for name, own in found.items()]  # fmt: skip
    return sorted(entries, key=lambda entry: entry.written_at, reverse=True)


def _match(path: str, pattern: str) -> str | None:
    """Return the file, or the folder above it, that a pattern names; None if it names neither.

    A pattern that begins with two asterisks and a slash names files at any depth.
    """
    parts, wanted = path.split("/"), pattern.split("/")
    if wanted[0] == "**":
        last = parts[-len(wanted) + 1 :]
        return path if len(last) == len(wanted) - 1 and _alike(last, wanted[1:]) else None
    fits = len(parts) >= len(wanted) and _alike(parts, wanted)
    return "/".join(parts[: len(wanted)]) if fits else None


def _alike(parts: list[str], wanted: list[str]) -> bool:
    return all(map(fnmatchcase, parts, wanted))


def _stem_length(name: str) -> int:
    match = _STEP.search(name)
    return match.end(1) if match else len(name)


def _checkpoint(name: str, files: list[SavedFile], *, marked: bool) -> OwnCheckpoint:
    match = _STEP.search(name)
    return OwnCheckpoint(
        name=name,
        step=int(match[1]) if match else None,
        size_bytes=sum(file.size_bytes for file in files),
        written_at=max(file.written_at for file in files),
        complete=not marked or any(file.path == f"{name}/{MARKER}" for file in files),
        files=tuple(file.path for file in files),
    )
