"""Keep on this machine what was read of a training's metrics, so that it opens without its site.

A file for each training holds the bytes as the site sent them: bins of long files, and lines.
What is damaged, or was written by another version of this module, is no cache and is read anew.
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
"""The limit for all files; the least recently used are removed first."""
_VERSION = 3
_SUFFIX = ".metrics"


@dataclass
class KeptFile:
    """The part of one file of metrics that was read."""

    begin_bytes: int = 0
    """The offset of the first line."""
    bins: bytes = b""
    """Bins of what is before the lines."""
    lines: bytearray = field(default_factory=bytearray)

    @property
    def end_bytes(self) -> int:
        """Return how far the file was read."""
        return self.begin_bytes + len(self.lines)


@dataclass
class Cached:
    """The files of a training that were read."""

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
        for name, begin, bins_bytes, lines_bytes in known["files"]:
            middle, end = at + bins_bytes, at + bins_bytes + lines_bytes
            files[name] = KeptFile(begin, content[at:middle], bytearray(content[middle:end]))
            at = end
        return Cached(seen_at, files) if at == len(content) else None
    except (OSError, RuntimeError, zlib.error, ValueError, KeyError, TypeError):
        return None


def store(record: Record, cached: Cached) -> None:
    """Keep what was read of a training; nothing happens where that can't be written."""
    files = cached.files
    sizes = [[name, f.begin_bytes, len(f.bins), len(f.lines)] for name, f in files.items()]
    content = [json.dumps({"of": _of(record), "files": sizes}).encode() + b"\n"]
    content += [part for file in files.values() for part in (file.bins, bytes(file.lines))]
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
