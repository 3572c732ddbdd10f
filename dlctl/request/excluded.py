"""A file or a folder that is not sent, and how much is in it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dlctl.contract import BY_DLCTL
from dlctl.request.ignore import is_left_out

MOST_FILES = 10_000
"""The files of a larger folder are not counted."""


@dataclass(frozen=True)
class Excluded:
    """A file or a folder that is not sent."""

    path: str
    """Relative; a folder ends with `/`."""
    rule: str
    files: tuple[tuple[str, int], ...] | None
    """The path and the size of each file in it; None: not counted."""

    @property
    def size_bytes(self) -> int:
        """Return the size of its files, as far as they were counted."""
        return sum(size for _, size in self.files or ())


def exclude(path: str, place: Path, is_folder: bool, rule: str) -> Excluded:
    """Return what is not sent; of a folder with the files in it."""
    if not is_folder:
        return Excluded(path, rule, ((path, place.lstat().st_size),))
    if rule == BY_DLCTL:
        return Excluded(f"{path}/", rule, None)
    found = tuple(itertools.islice(_files(place, path), MOST_FILES + 1))
    return Excluded(f"{path}/", rule, None if len(found) > MOST_FILES else found)


def _files(place: Path, path: str) -> Iterator[tuple[str, int]]:
    for folder, folders, names in os.walk(place):
        folders[:] = sorted(name for name in folders if not is_left_out(name))
        below = os.path.relpath(folder, place)
        prefix = path if below == "." else f"{path}/{below}"
        for name in sorted(names):
            try:
                yield f"{prefix}/{name}", Path(folder, name).lstat().st_size
            except OSError:  # removed meanwhile
                continue
