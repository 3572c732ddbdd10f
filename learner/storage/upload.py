"""Write what an attempt has made to a container; the marker that names all of it is the last."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from dlctl import contract
from dlctl.contract.ground.amounts import counted, format_bytes
from dlctl.contract.stores import MARKER, STORING, Stored, StoredFile
from learner.errors import UserFault
from learner.storage.objects import ObjectStore, content_of, digests_of
from learner.storage.progress import Progress

_THREADS = 4


class Superseded(Exception):
    """A later attempt publishes; this one may not any more."""


@dataclass(frozen=True)
class Upload:
    """The files to write, and their places."""

    source: Path
    """A folder, whose links count as what they lead to."""
    prefix: str
    """The beginning of the keys, with `/` at its end."""
    training_id: str
    attempt: int
    state: str


def save(
    upload: Upload, store: ObjectStore, progress: Progress, check: Callable[[], None]
) -> Stored:
    """Write all files below the prefix, and the marker; files that are there already stay.

    Args:
        check: Called right before each publication; raises `Superseded`.

    Raises:
        Superseded: the container or `check` says that a later attempt publishes.
        Refused, Unavailable: the store's words.
    """
    marker = upload.prefix + MARKER
    if _is_marked(upload, store, marker):  # it must not name files that are about to change
        _mark(upload, store, marker, STORING, [], check)
    paths = sorted(Path(folder, name) for folder, _, names in
                   os.walk(upload.source, followlinks=True) for name in names)  # fmt: skip
    progress.begin(sum(path.stat().st_size for path in paths))

    def one(path: Path) -> StoredFile:
        name = path.relative_to(upload.source).as_posix()
        before, there = _version(path), store.stat(upload.prefix + name)
        known = digests_of(path) if there and there.size_bytes == before[0] else None
        if known and known.are_of(there):
            progress.add(known.size_bytes)
        else:
            check()
            known = store.write(upload.prefix + name, path, progress.add)
        if _version(path) != before:
            raise UserFault(
                f"The file {name!r} changed while it was being stored.",
                hint=f"Results are final once the learners have ended: `dlctl resume "
                f"{upload.training_id}` stores them again",
            )
        return StoredFile(name, known.size_bytes, known.sha256)

    with ThreadPoolExecutor(_THREADS) as pool:
        files = list(pool.map(one, paths))
    stored = _mark(upload, store, marker, upload.state, files, check)
    total = format_bytes(sum(each.size_bytes for each in files))
    progress.say(f"{counted(len(files), 'file')}, {total}, below {upload.prefix}")
    return stored


def _mark(
    upload: Upload, store: ObjectStore, marker: str, state: str, files: list[StoredFile],
    check: Callable[[], None],
) -> Stored:  # fmt: skip
    stored = Stored(upload.training_id, upload.attempt, state, files)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, MARKER)
        file.write_text(contract.to_json(stored))
        check()
        store.write(marker, file, lambda _: None)
    return stored


def _version(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _is_marked(upload: Upload, store: ObjectStore, marker: str) -> bool:
    """Return whether an earlier try has ended; refuse to write what a later attempt has written."""
    item = store.stat(marker)
    if item is None or item.size_bytes == 0:
        return False
    known = json.loads(content_of(store, item))
    if known.get("attempt", 0) > upload.attempt:
        raise Superseded
    return True
