"""Fetch objects by several requests at a time; what was fetched before a fault is not again.

An object in several chunks grows in a file that is the claim's own, beside a list of the chunks
that are there, with their checksums. A fetcher that takes over renames both, so that one that was
stopped and wakes up late finds neither. The file gets its name in the cache once its content agrees
with the object's etag.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from dlctl.contract.stores import ListedObject
from learner.storage.claim import Claim
from learner.storage.objects import Moved, ObjectStore, Sink, Unavailable
from learner.storage.objects.base import CHUNK_BYTES, OPAQUE_HINT

THREADS = 8
_TRIES = 3
"""How often an object is fetched whose content disagrees with its etag."""
_BLOCK_BYTES = 1 << 18
"""How much is read from a file at a time: it fits a processor's cache."""
_PART, _CHUNKS = ".part", ".chunks"
_MD5 = re.compile(r"[0-9a-f]{32}")


class Overtaken(Exception):
    """Another process has taken over the claim."""


@dataclass
class Wanted:
    """One object that is to become a file of the cache."""

    item: ListedObject
    file: Path
    etag_is_md5: bool = True
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    done: set[int] = field(default_factory=set)
    """The chunks that are in the part file."""

    @property
    def count(self) -> int:
        """Return the number of chunks; an empty object has none."""
        return -(-self.item.size_bytes // CHUNK_BYTES)

    def span(self, number: int) -> tuple[int, int]:
        """Return the start and the length of a chunk."""
        start = number * CHUNK_BYTES
        return start, min(CHUNK_BYTES, self.item.size_bytes - start)


class Fetcher:
    """Fetches objects into their files.

    Args:
        moved: Called with the number of bytes that came from the store, or from an earlier try.
    """

    def __init__(self, store: ObjectStore, claim: Claim, moved: Moved) -> None:
        self._store, self._claim, self._moved = store, claim, moved
        self._mine = threading.local()
        self._failed: list[BaseException] = []
        self._damaged: list[Wanted] = []
        self._came_bytes: list[int] = []

    def fetch(self, wanted: Sequence[Wanted]) -> int:
        """Fetch all objects; return how many bytes came from the store.

        Raises:
            Refused: the store refuses an object.
            Unavailable: the store fails for longer than the patience of its calls, or an object
                keeps arriving damaged.
            Overtaken: another process has the claim now.
        """
        for _ in range(_TRIES):
            wanted = self._fetch_once(wanted)
            if not wanted:
                return sum(self._came_bytes)
        raise Unavailable(
            f"{wanted[0].item.key!r} arrived damaged {_TRIES} times: it is not what its etag says"
            f"{OPAQUE_HINT}"
        )

    def _fetch_once(self, wanted: Iterable[Wanted]) -> list[Wanted]:
        """Fetch all objects; return those whose content disagrees with the etag."""
        self._damaged = []
        with ThreadPoolExecutor(THREADS) as pool:
            jobs = []
            for each in wanted:
                if each.count <= 1:
                    jobs.append(pool.submit(self._guarded, self._small, each))
                else:
                    self._adopt(each)
                    rest = [n for n in range(each.count) if n not in each.done]
                    jobs += [pool.submit(self._guarded, self._chunk, each, n) for n in rest]
                    if not rest:
                        jobs.append(pool.submit(self._guarded, self._finish, each))
            wait_for(jobs)
        if self._failed:
            raise self._failed[0]
        return self._damaged

    def _guarded(self, action: Callable[..., None], *arguments: object) -> None:
        """Run one job, unless one has failed: then the rest are only passed over."""
        if self._failed:
            return
        try:
            if self._claim.lost:
                raise Overtaken
            action(*arguments)
        except BaseException as error:
            self._failed.append(error)

    def _small(self, wanted: Wanted) -> None:
        size_bytes = wanted.item.size_bytes
        content = self._read(wanted.item, 0, size_bytes) if size_bytes else memoryview(b"")
        if not _agrees(io.BytesIO(content), wanted):
            self._give_back(wanted)
            return
        own = self._own(wanted, _PART)
        with own.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self._publish(own, wanted)

    def _give_back(self, wanted: Wanted) -> None:
        """Note that an object has arrived damaged, and has to move again."""
        self._moved(-wanted.item.size_bytes)
        for suffix in (_PART, _CHUNKS):
            self._own(wanted, suffix).unlink(missing_ok=True)
        wanted.done.clear()
        self._damaged.append(wanted)

    def _own(self, wanted: Wanted, suffix: str) -> Path:
        return wanted.file.with_name(f"{wanted.file.name}.{self._claim.token}{suffix}")

    def _adopt(self, wanted: Wanted) -> None:
        """Take over the chunks that an earlier fetcher has left, and trust what its sums prove."""
        part, chunks = self._own(wanted, _PART), self._own(wanted, _CHUNKS)
        for old in wanted.file.parent.glob(f"{wanted.file.name}.*{_CHUNKS}"):
            with contextlib.suppress(OSError):
                old.with_name(old.name.removesuffix(_CHUNKS) + _PART).rename(part)
                old.rename(chunks)
        part.touch()
        chunks.touch()
        with part.open("rb") as file:
            for line in chunks.read_text().splitlines():
                number, _, checksum = line.partition(" ")
                if not number.isdecimal() or not checksum.isdecimal():
                    continue  # cut off in the middle
                start, length = wanted.span(int(number))
                file.seek(start)
                if zlib.crc32(file.read(length)) == int(checksum):
                    wanted.done.add(int(number))
                    self._moved(length)

    def _read(self, item: ListedObject, start: int, length: int) -> memoryview:
        """Return a range of an object, in this thread's memory: it stays until the next call."""
        if not hasattr(self._mine, "room"):
            self._mine.room = memoryview(bytearray(CHUNK_BYTES))
        into = Sink(self._mine.room[:length], self._moved)
        self._store.read(item, start, into)
        self._came_bytes.append(length)
        return into.room

    def _chunk(self, wanted: Wanted, number: int) -> None:
        start, length = wanted.span(number)
        content = self._read(wanted.item, start, length)
        try:
            with self._own(wanted, _PART).open("r+b") as file:  # by name: none after a takeover
                file.seek(start)
                file.write(content)
            line = f"{number} {zlib.crc32(content)}\n"  # proves it after a crash of the machine
            with wanted.lock, self._own(wanted, _CHUNKS).open("r+") as file:
                file.seek(0, os.SEEK_END)
                file.write(line)
        except FileNotFoundError as error:
            raise Overtaken from error
        with wanted.lock:
            wanted.done.add(number)
            is_last = len(wanted.done) == wanted.count
        if is_last:
            self._finish(wanted)

    def _finish(self, wanted: Wanted) -> None:
        own = self._own(wanted, _PART)
        try:
            with own.open("rb") as file:
                is_whole = _agrees(file, wanted)
                os.fsync(file.fileno())
        except FileNotFoundError as error:
            raise Overtaken from error
        if is_whole:
            self._publish(own, wanted)
            self._own(wanted, _CHUNKS).unlink(missing_ok=True)
        else:
            self._give_back(wanted)

    def _publish(self, own: Path, wanted: Wanted) -> None:
        try:
            if not self._claim.still_owned():
                own.unlink(missing_ok=True)
                raise Overtaken
            own.chmod(own.stat().st_mode & ~0o222)  # trainings share it
            own.rename(wanted.file)
        except FileNotFoundError as error:
            raise Overtaken from error


def _agrees(content: BinaryIO, wanted: Wanted) -> bool:
    """Compare a content with its etag, if that is an MD5, or the MD5 of the MD5s of its parts.

    S3 takes the MD5s of the parts as bytes, Swift as hexadecimal text.
    """
    item = wanted.item
    etag = item.etag.partition("-")[0] if item.parts else item.etag
    if not wanted.etag_is_md5 or not _MD5.fullmatch(etag):
        return content.seek(0, os.SEEK_END) == item.size_bytes
    if not item.parts:
        return _md5(content, item.size_bytes).hex() == etag
    parts = [_md5(content, size_bytes) for size_bytes in item.parts]
    texts = (b"".join(parts), "".join(part.hex() for part in parts).encode())
    return etag in [_md5(io.BytesIO(text), len(text)).hex() for text in texts]


def _md5(content: BinaryIO, size_bytes: int) -> bytes:
    digest = hashlib.md5(usedforsecurity=False)
    while block := content.read(min(_BLOCK_BYTES, size_bytes)):
        digest.update(block)
        size_bytes -= len(block)
    return digest.digest()
