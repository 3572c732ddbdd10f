"""Which files a parser reads: the learner's log, files in LOG_DIR, and what `in` names."""

from __future__ import annotations

import os
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

TRAINING_LOGS = ("training-log.txt", "user_log.txt")
EMETRICS_FILE = "evaluation-metrics.txt"
TENSORBOARD_IN = "$JOB_STATE_DIR/logs/tb"
_MOST_ENTRIES = 20_000
_MOST_DEPTH = 8


@dataclass(frozen=True)
class Found:
    """A file to parse."""

    path: Path
    below: tuple[str, ...] = ()
    """The folders between the place that was searched and the file."""

    @property
    def subid(self) -> str:
        """Which of several runs the file belongs to."""
        return "/".join(self.below)


def resolve(text: str, variables: Mapping[str, str]) -> Path:
    """Return the path that `in` names; a relative one is below LOG_DIR."""
    return Path(variables["LOG_DIR"], string.Template(text).safe_substitute(variables))


def named_files(place: Path, names: tuple[str, ...]) -> Iterator[Found]:
    """Yield the files with these names in a folder and its sub-folders; a file is itself."""
    if place.is_file():
        yield Found(place)
        return
    for found in _walk(place):
        if found.path.name in names:
            yield found


def event_files(place: Path) -> Iterator[Found]:
    """Yield TensorBoard's event files in a folder and its sub-folders."""
    if place.is_file():
        yield Found(place)
        return
    for found in _walk(place):
        if "tfevents" in found.path.name:
            yield found


def _walk(folder: Path) -> Iterator[Found]:
    """Yield files, not behind links, and not without end: a folder may be full of other things."""
    waiting: list[tuple[Path, tuple[str, ...]]] = [(folder, ())]
    seen = 0
    while waiting:
        current, below = waiting.pop(0)
        try:
            with os.scandir(current) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            seen += 1
            if seen > _MOST_ENTRIES:
                return
            try:
                if entry.is_file(follow_symlinks=False):
                    yield Found(Path(entry.path), below)
                elif entry.is_dir(follow_symlinks=False) and len(below) < _MOST_DEPTH:
                    waiting.append((Path(entry.path), (*below, entry.name)))
            except OSError:
                continue
