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
from typing import Any, BinaryIO

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
    sums: Sums | None = field(default=None, repr=False)
    """Of the chunks that were added, in their order."""
    summed: int = 0
    """How many those are."""
    summing: threading.Lock = field(default_factory=threading.Lock, repr=False)

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
        wanted.sums, wanted.summed = None, 0
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
        elif wanted.summing.acquire(blocking=False):  # the other threads go on fetching meanwhile
            try:
                self._sum(wanted)
            finally:
                wanted.summing.release()

    def _finish(self, wanted: Wanted) -> None:
        own = self._own(wanted, _PART)
        with wanted.summing:
            self._sum(wanted)
        try:
            with own.open("rb") as file:
                os.fsync(file.fileno())
        except FileNotFoundError as error:
            raise Overtaken from error
        assert wanted.sums is not None
        if wanted.sums.agree():
            self._publish(own, wanted)
            self._own(wanted, _CHUNKS).unlink(missing_ok=True)
        else:
            self._give_back(wanted)

    def _sum(self, wanted: Wanted) -> None:
        """Add to the checksum what is there, as far as nothing is missing before it."""
        if wanted.sums is None:
            wanted.sums = Sums(wanted)
        try:
            with self._own(wanted, _PART).open("rb") as file:
                while wanted.summed in wanted.done:
                    start, length = wanted.span(wanted.summed)
                    file.seek(start)
                    wanted.sums.add(file, length)
                    wanted.summed += 1
        except FileNotFoundError as error:
            raise Overtaken from error

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
    """Return whether a whole content is what its etag says."""
    size_bytes = content.seek(0, os.SEEK_END)
    content.seek(0)
    sums = Sums(wanted)
    sums.add(content, size_bytes)
    return size_bytes == wanted.item.size_bytes and sums.agree()


class Sums:
    """The MD5 of a content that comes in pieces, or the MD5s of its parts.

    Nothing is summed where the etag is neither; then the size alone counts.
    """

    def __init__(self, wanted: Wanted) -> None:
        self._item = wanted.item
        etag = self._item.etag
        self._etag = etag.partition("-")[0] if self._item.parts else etag
        self._counts = wanted.etag_is_md5 and _MD5.fullmatch(self._etag) is not None
        self._left = list(self._item.parts or [self._item.size_bytes])
        self._md5s = [_md5()]

    def add(self, content: BinaryIO, size_bytes: int) -> None:
        """Add so many bytes of a file, from where it stands."""
        if not self._counts:
            return
        while size_bytes:
            if self._left[0] == 0 and len(self._left) > 1:
                self._left.pop(0)
                self._md5s.append(_md5())
            block = content.read(min(_BLOCK_BYTES, size_bytes, self._left[0] or size_bytes))
            if not block:
                return
            self._md5s[-1].update(block)
            self._left[0] -= len(block)
            size_bytes -= len(block)

    def agree(self) -> bool:
        """Return whether the etag is the MD5, or the MD5 of the MD5s of the parts.

        S3 takes the MD5s of the parts as bytes, Swift as hexadecimal text.
        """
        if not self._counts or not self._item.parts:
            return not self._counts or self._md5s[0].hexdigest() == self._etag
        digests = [each.digest() for each in self._md5s]
        texts = (b"".join(digests), "".join(each.hex() for each in digests).encode())
        return self._etag in [_md5(text).hexdigest() for text in texts]


def _md5(content: bytes = b"") -> Any:
    return hashlib.md5(content, usedforsecurity=False)
