"""A log to which a thread appends: what arrives while it syncs goes to the disk together.

It consists of records: a length, a checksum, a kind and the payload.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import queue
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dlctl import contract
from search.errors import SearchError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PATIENCE_S = 3.0
"""After so long without an answer of the disk, callers are told to come again."""
_RETRY_S = 0.2


@dataclass(frozen=True)
class _Segment:
    """A file with which the log goes on, and the snapshot at its beginning."""

    path: Path
    snapshot: list[bytes]


class Log:
    """The log of one incarnation. `append` returns at once; `flushed` returns when it is durable.

    While the disk is full or hangs, `flushed` says so: nothing is acknowledged. Nothing is lost,
    either: what was appended is written once that is possible.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._file = path, _create(path)
        self._queue: queue.SimpleQueue[bytes | _Segment | None] = queue.SimpleQueue()
        self._offset = 0
        self.segment_bytes = 0
        """How long the current file will be once all is on the disk."""
        self.snapshot_bytes = 0
        """How much of it is its snapshot."""
        self._appended = self._durable = 0
        self._bytes_in = self._bytes_out = 0
        self._waiting: deque[tuple[int, float, asyncio.Future[None]]] = deque()
        self._loop = asyncio.get_running_loop()
        self.broken: SearchError | None = None
        """Why the log takes nothing more."""
        self.full = False
        """Whether the disk had no room at the last try."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._write, name="journal", daemon=True)
        self._thread.start()

    @property
    def backlog_bytes(self) -> int:
        """Return the bytes that are not on the disk yet."""
        return self._bytes_in - self._bytes_out

    def append(self, kind: int, payload: bytes) -> None:
        """Add a record after all others."""
        data = encode(kind, payload)
        self._appended += 1
        self._bytes_in += len(data)
        self.segment_bytes += len(data)
        self._queue.put(data)

    def begin_segment(self, path: Path, snapshot: Iterable[tuple[int, bytes]]) -> None:
        """Go on in another file, which begins with a snapshot; remove the one before it.

        If there is no room for the snapshot, the log goes on in the old file.

        Args:
            path: The file; it does not exist yet.
            snapshot: Records that say all that was appended so far.
        """
        records = [encode(*each) for each in snapshot]
        self.segment_bytes = self.snapshot_bytes = sum(map(len, records))
        self._queue.put(_Segment(path, records))

    async def flushed(self) -> None:
        """Return once all that was appended before the call is on the disk.

        Raises:
            SearchError: The disk is full, or hangs, or has failed.
        """
        if self.broken is not None:
            raise self.broken
        if self._durable >= self._appended:
            return
        if self.full:
            raise self._is_full()
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((self._appended, self._loop.time(), future))
        await future

    def look(self) -> None:
        """Tell those who have waited for long that the disk is full, or hangs."""
        if not self._waiting:
            return
        waited_s = self._loop.time() - self._waiting[0][1]
        if self.full:
            self._refuse(self._is_full())
        elif waited_s > _PATIENCE_S:
            self._refuse(SearchError(
                f"the file system of {self.path} has not answered for {waited_s:.0f} s: it hangs",
                hint="the search goes on by itself once it answers",
            ))  # fmt: skip

    def _is_full(self) -> SearchError:
        return SearchError(
            f"the disk is full: {self.path} can't be written",
            hint="free some space, or raise the quota; the search then goes on by itself",
        )

    def _refuse(self, error: SearchError) -> None:
        for _, _, future in self._waiting:
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()

    def close(self) -> None:
        """Write what is left and close the file. A full disk is not waited for."""
        self._closing.set()
        self._queue.put(None)
        self._thread.join(timeout=5)

    def _write(self) -> None:
        ended = False
        while not ended:
            item = self._queue.get()
            records: list[bytes] = []
            with contextlib.suppress(queue.Empty):
                while isinstance(item, bytes):
                    records.append(item)
                    item = self._queue.get_nowait()
            ended = item is None
            try:
                self._store(b"".join(records))
                self._tell(len(records), sum(map(len, records)), None)
                if isinstance(item, _Segment):
                    self._switch(item)
            except OSError as error:
                self._tell(0, 0, error)
                break
        os.close(self._file)

    def _store(self, data: bytes) -> None:
        """Write and sync. After a failed sync the kernel may have dropped pages: write them anew.

        Raises:
            OSError: The disk failed in another way than by being full.
        """
        while data:
            try:
                view, at = memoryview(data), self._offset
                while view:
                    written = os.pwrite(self._file, view, at)
                    view, at = view[written:], at + written
                os.fdatasync(self._file)
            except OSError as error:
                if error.errno not in _FULL or self._closing.is_set():
                    raise
                self.full = True
                os.ftruncate(self._file, self._offset)
                time.sleep(_RETRY_S)
                continue
            self._offset += len(data)
            self.full = False
            return

    def _switch(self, segment: _Segment) -> None:
        """Go on in another file. Until its snapshot is on the disk, the old one counts."""
        file = _create(segment.path)
        try:
            snapshot = b"".join(segment.snapshot)
            at = 0
            while at < len(snapshot):
                at += os.pwrite(file, memoryview(snapshot)[at:], at)
            os.fdatasync(file)
        except OSError as error:
            os.close(file)
            segment.path.unlink(missing_ok=True)
            if error.errno in _FULL:
                return
            raise
        os.close(self._file)
        self.path.unlink(missing_ok=True)
        self.path, self._file, self._offset = segment.path, file, len(snapshot)

    def _tell(self, records: int, size: int, error: OSError | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._wake, records, size, error)

    def _wake(self, records: int, size: int, error: OSError | None) -> None:
        self._durable += records
        self._bytes_out += size
        if error is not None:
            self.broken = SearchError(
                f"the broker's log can't be written: {error}",
                hint="look at the job directory's file system; a new broker goes on from the log",
            )
        while self._waiting and (error or self._waiting[0][0] <= self._durable):
            _, _, future = self._waiting.popleft()
            if future.done():
                continue
            if self.broken is not None:
                future.set_exception(self.broken)
            else:
                future.set_result(None)


def _create(path: Path) -> int:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    contract.sync_directory(path.parent)
    return file


_HEADER = struct.Struct("<IIB")
"""Length of the payload, CRC-32 of kind and payload, kind."""
LONGEST = 256 << 20


@dataclass(frozen=True)
class Record:
    """One record."""

    kind: int
    payload: bytes


def encode(kind: int, payload: bytes) -> bytes:
    """Return a record as it is stored."""
    checksum = zlib.crc32(payload, zlib.crc32(bytes([kind])))
    return _HEADER.pack(len(payload), checksum, kind) + payload


def read_records(path: Path) -> tuple[list[Record], int]:
    """Return the records of a file, and how many bytes they take.

    What follows the last whole record is a torn tail: it was never acknowledged, because a writer
    acknowledges nothing before everything up to it is on the disk.
    """
    data = memoryview(path.read_bytes())
    found: list[Record] = []
    at = 0
    while at + _HEADER.size <= len(data):
        length, checksum, kind = _HEADER.unpack_from(data, at)
        end = at + _HEADER.size + length
        if length > LONGEST or end > len(data):
            break
        payload = data[at + _HEADER.size : end]
        if zlib.crc32(payload, zlib.crc32(bytes([kind]))) != checksum:
            break
        found.append(Record(kind, bytes(payload)))
        at = end
    return found, at
