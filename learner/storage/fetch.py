"""Fetch objects by several requests at a time; what was fetched before a fault is not again.

An object in several chunks grows in a file that is the claim's own, beside a list of the chunks
that are there, with their checksums. A fetcher that takes over renames both, so that one that was
stopped and wakes up late finds neither. The file gets its name in the cache once its content agrees
with the object's etag.
"""

from __future__ import annotations

import contextlib
import os
import threading
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from pathlib import Path

from learner.storage.claim import Claim
from learner.storage.etag_check import EtagCheck
from learner.storage.objects import (
    Moved,
    Object,
    ObjectStore,
    Refusal,
    Refused,
    Sink,
    Unavailable,
    content_of,
)
from learner.storage.objects.base import CHUNK_BYTES, OPAQUE_HINT

THREADS = 8
_TRIES = 3
"""How often an object is fetched whose content disagrees with its etag."""
_BLOCK_BYTES = 1 << 18
"""How much is read from a file at a time: it fits a processor's cache."""
_PART, _CHUNKS = ".part", ".chunks"


class Overtaken(Exception):
    """Another process has taken over the claim."""


@dataclass
class Wanted:
    """One object that is to become a file of the cache."""

    item: Object
    file: Path
    etag_is_md5: bool = True
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    done: set[int] = field(default_factory=set)
    """The chunks that are in the part file."""

    check: EtagCheck | None = None
    """Has taken the first `checked` chunks; the holder of `checking` goes on."""
    checked: int = 0
    checking: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def count(self) -> int:
        """How many chunks the object has; an empty one has none."""
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
        self._came_bytes: list[int] = []

    def fetch(self, wanted: Iterable[Wanted]) -> int:
        """Fetch all objects; return how many bytes came from the store.

        Raises:
            Refused: the store refuses an object.
            Unavailable: the store fails for longer than the patience of its calls.
            Overtaken: another process has the claim now.
        """
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
        return sum(self._came_bytes)

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
        item = wanted.item
        for _ in range(_TRIES):
            content = content_of(self._store, item, self._moved)
            self._came_bytes.append(len(content))
            check = EtagCheck(item, wanted.etag_is_md5)
            check.update(memoryview(content))
            if check.agrees():
                break
            self._moved(-item.size_bytes)
        else:
            raise _damaged(item)
        own = self._own(wanted, _PART)
        with own.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self._publish(own, wanted)

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
                number, _, told = line.partition(" ")
                if not number.isdecimal() or not told.isdecimal():
                    continue  # cut off in the middle
                start, length = wanted.span(int(number))
                file.seek(start)
                if zlib.crc32(file.read(length)) == int(told):
                    wanted.done.add(int(number))
                    self._moved(length)

    def _read(self, item: Object, start: int, length: int) -> memoryview:
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
        elif wanted.checking.acquire(blocking=False):
            self._check(wanted, number, content)

    def _check(self, wanted: Wanted, known: int = -1, content: bytes | memoryview = b"") -> bool:
        """Compare the chunks in order, as far as they are there; return whether they still agree.

        The caller holds `checking`.

        Args:
            known: A chunk whose content need not be read again.
        """
        try:
            wanted.check = wanted.check or EtagCheck(wanted.item, wanted.etag_is_md5)
            if not wanted.check.can_tell:
                return True
            with self._own(wanted, _PART).open("rb") as file:
                while wanted.checked in wanted.done:
                    if wanted.checked == known:
                        wanted.check.update(content)
                    else:
                        start, length = wanted.span(wanted.checked)
                        file.seek(start)
                        for done in range(0, length, _BLOCK_BYTES):
                            wanted.check.update(file.read(min(_BLOCK_BYTES, length - done)))
                    wanted.checked += 1
            return wanted.checked < wanted.count or wanted.check.agrees()
        except FileNotFoundError as error:
            raise Overtaken from error
        finally:
            wanted.checking.release()

    def _finish(self, wanted: Wanted) -> None:
        """Compare the whole file with the etag; fetch it again if they disagree."""
        own = self._own(wanted, _PART)
        for tried in range(_TRIES):
            if tried == 0:
                wanted.checking.acquire()
            if self._check(wanted) if tried == 0 else _agrees(own, wanted):
                break
            if tried == _TRIES - 1:
                own.unlink(missing_ok=True)
                self._own(wanted, _CHUNKS).unlink(missing_ok=True)
                raise _damaged(wanted.item)
            self._moved(-wanted.item.size_bytes)
            for number in range(wanted.count):
                start, length = wanted.span(number)
                with own.open("r+b") as file:
                    file.seek(start)
                    file.write(self._read(wanted.item, start, length))
        with own.open("rb") as file:
            os.fsync(file.fileno())
        self._publish(own, wanted)
        self._own(wanted, _CHUNKS).unlink(missing_ok=True)

    def _publish(self, own: Path, wanted: Wanted) -> None:
        try:
            if not self._claim.still_owned():
                own.unlink(missing_ok=True)
                raise Overtaken
            own.chmod(own.stat().st_mode & ~0o222)  # trainings share it
            own.rename(wanted.file)
        except FileNotFoundError as error:
            raise Overtaken from error


def _agrees(path: Path, wanted: Wanted) -> bool:
    check = EtagCheck(wanted.item, wanted.etag_is_md5)
    if not check.can_tell:
        return path.stat().st_size == wanted.item.size_bytes
    with path.open("rb") as file:
        while content := file.read(_BLOCK_BYTES):
            check.update(content)
    return check.agrees()


def _damaged(item: Object) -> Exception:
    if not item.etag:
        return Refused(Refusal.CHANGED, key=item.key)
    return Unavailable(
        f"{item.key!r} arrived damaged {_TRIES} times: it is not what its etag says{OPAQUE_HINT}"
    )
