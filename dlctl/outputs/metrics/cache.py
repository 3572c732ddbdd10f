"""Keep on this machine what was read of a training's metrics, so that it opens without its site.

A file for each training holds the bytes as the site sent them: lines, or bins of long files. What
is damaged, or was written by another version of this module, is no cache and is read anew.
"""

from __future__ import annotations

import json
import os
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl.contract import whole_file
from dlctl.sites.model import xdg_directory

if TYPE_CHECKING:
    from dlctl.record import Record

LIMIT_BYTES = 256 * 1024 * 1024
"""Of all files; the ones that were used least recently are removed first."""
_VERSION = 2
_SUFFIX = ".metrics"

Part = tuple[str, int, int, bytes]
"""What it is (`bins`, `names`, `events`, `tail`), shape, level, content: see `bins.open_long`."""


@dataclass
class KeptFile:
    """What was read of one file of metrics."""

    begin_bytes: int = 0
    """Where the lines begin; before them there are the parts."""
    parts: list[Part] = field(default_factory=list)
    lines: bytearray = field(default_factory=bytearray)

    @property
    def end_bytes(self) -> int:
        """Return how far the file was read."""
        return self.begin_bytes + len(self.lines)

    def last_bytes(self, count: int) -> bytes:
        """Return the last bytes before the end, which tell whether it is still the same file."""
        tail = next((content for what, _, _, content in self.parts if what == "tail"), b"")
        return (tail[-count:] + bytes(self.lines[-count:]))[-count:]


@dataclass
class Cached:
    """What was read of a training."""

    budget_bytes: int
    """Of the bins of long files, when they were read."""
    seen_at: float
    """When the site last answered, Unix seconds."""
    files: dict[str, KeptFile]


def cache_folder() -> Path:
    """Return `$XDG_CACHE_HOME/dlctl/metrics`, which need not exist."""
    return xdg_directory("XDG_CACHE_HOME", ".cache") / "dlctl" / "metrics"


def load(record: Record) -> Cached | None:
    """Return what is kept of a training; None if that is nothing usable."""
    try:
        path = _path(record.training_id)
        seen_at = path.stat().st_mtime
        head, _, content = zlib.decompress(path.read_bytes()).partition(b"\n")
        known = json.loads(head)
        if known["of"] != _of(record):
            return None
        files, at = {}, 0
        for name, begin, parts, length in known["files"]:
            kept = files[name] = KeptFile(begin)
            for what, shape, level, part_bytes in parts:
                kept.parts.append((what, shape, level, content[at : at + part_bytes]))
                at += part_bytes
            kept.lines += content[at : at + length]
            at += length
        return Cached(known["budget_bytes"], seen_at, files) if at == len(content) else None
    except (OSError, RuntimeError, zlib.error, ValueError, KeyError, TypeError):
        return None


def store(record: Record, cached: Cached) -> None:
    """Keep what was read of a training; nothing happens where that can't be written."""
    files = cached.files
    head = {
        "of": _of(record), "budget_bytes": cached.budget_bytes,
        "files": [
            [name, f.begin_bytes, [[*part[:3], len(part[3])] for part in f.parts], len(f.lines)]
            for name, f in files.items()
        ],
    }  # fmt: skip
    content = [json.dumps(head).encode() + b"\n"]
    for kept in files.values():
        content += [*(part[3] for part in kept.parts), bytes(kept.lines)]
    with suppress(OSError, RuntimeError):  # a full disk, no home
        path = _path(record.training_id)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with whole_file(path, 0o600, sync=False) as file:
            file.write(zlib.compress(b"".join(content), 1))
        os.utime(path, (cached.seen_at, cached.seen_at))
        _remove_oldest(path.parent)


def touch(record: Record, seen_at: float) -> None:
    """Note when the site has answered that there is nothing new."""
    with suppress(OSError, RuntimeError):
        os.utime(_path(record.training_id), (seen_at, seen_at))


def forget(training_id: str) -> None:
    """Remove what is kept of a training."""
    with suppress(OSError, RuntimeError):
        _path(training_id).unlink()


def _path(training_id: str) -> Path:
    return cache_folder() / f"{training_id.replace('/', '_')}{_SUFFIX}"


def _of(record: Record) -> list[object]:
    return [_VERSION, record.training_id, record.site, record.job_dir]


def _remove_oldest(folder: Path) -> None:
    known = sorted(((s := path.stat()).st_mtime, s.st_size, path) for path in folder.iterdir())
    total_bytes = sum(size for _, size, _ in known)
    for _, size, path in known[:-1]:
        if total_bytes <= LIMIT_BYTES:
            return
        path.unlink(missing_ok=True)
        total_bytes -= size
