"""Follow for many clients: one thread and one shell at each site look for all of them."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from dlctl.errors import DlctlError, TransportError
from dlctl.files.small_files import look_at, read_appended_of_many
from dlctl.lifecycle import QueuePace, refresh
from dlctl.logs.reader import RETRY_S, STATE_EVERY_S, LogPiece, LogReader, Wanted
from dlctl.outputs.metrics.files import EntryReader
from dlctl.service.client import may_pass

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.record import Record, RecordStore
    from dlctl.series.merged import Entry
    from dlctl.transport.resident import Look

_LOOK_S = 0.2
_MOST_WAITING = 32
_MOST_WAITING_BYTES = 1 << 20
"""So much may wait for a slow client; then its logs are not read on."""


class LogSource:
    """Follows logs."""

    def __init__(self, reader: LogReader) -> None:
        self.reader, self._wanted = reader, Wanted([], {}, 0)
        self.rest, self.positions, self.skip = reader.rest, reader.positions, reader.skip

    @property
    def advanced(self) -> bool:
        """Return whether the last look has read anything."""
        return self.reader.advanced

    def look(self) -> Look:
        """Return what to read next."""
        self._wanted = wanted = self.reader.wanted()
        return look_at(self.reader.job_dir, wanted.globs, wanted.offsets, wanted.limit_bytes)

    def take(self, _: Session, found: Mapping[str, bytes]) -> list[LogPiece]:
        """Return the lines that can be told now."""
        return self.reader.take(self._wanted, found)


class MetricsSource:
    """Follows metrics."""

    def __init__(self, record: Record) -> None:
        reader = self._reader = EntryReader(record)
        self.positions, self.skip, self.advanced = reader.positions, reader.skip, False

    def look(self) -> Look:
        """Return what to read next."""
        return self._reader.look

    def take(self, session: Session, found: Mapping[str, bytes]) -> list[Entry]:
        """Return the entries that have come."""
        self.advanced = bool(found)
        return self._reader.news(session.transport, found)

    def rest(self) -> list[Entry]:
        """Return nothing: a line without its end is none."""
        return []


Source = LogSource | MetricsSource
"""The source of a follower.

`look` says what to read next, and `take` returns what can be told of it. `rest` returns what was
held back, once there will be no more. `positions` are the bytes up to which each file was told;
`skip` begins there.
"""


@dataclass(frozen=True)
class Batch:
    """The pieces of one look, and the position at which a client goes on that has taken them."""

    pieces: list[Any]
    position: str

    @property
    def size_bytes(self) -> int:
        """Return about how much memory it takes."""
        return sum(len(getattr(each, "content", b"")) for each in self.pieces)


@dataclass
class _Follower:
    record: Record
    source: Source
    loop: asyncio.AbstractEventLoop
    number: int
    batches: asyncio.Queue[Batch | DlctlError | None] = field(default_factory=asyncio.Queue)
    ended: bool = False
    is_gone: bool = False
    given_bytes: int = 0
    taken_bytes: int = 0
    """Each is counted by one thread."""

    def look(self) -> Look:
        """Return what to read next.

        The shell at the site keeps a place in each file by its path: each follower has its own way
        of writing that.
        """
        look = self.source.look()
        return replace(look, folder=look.folder + "/." * self.number)

    @property
    def has_room(self) -> bool:
        waiting_bytes = self.given_bytes - self.taken_bytes
        return self.batches.qsize() < _MOST_WAITING and waiting_bytes < _MOST_WAITING_BYTES

    def give(self, pieces: list[Any]) -> None:
        batch = Batch(pieces, position_of(self.source))
        self.given_bytes += batch.size_bytes
        self._put(batch)

    def end(self, error: DlctlError | None = None) -> None:
        """Tell the client that there will be no more."""
        self.is_gone = True
        self._put(error)

    def _put(self, item: Batch | DlctlError | None) -> None:
        with suppress(RuntimeError):  # its loop has ended
            self.loop.call_soon_threadsafe(self.batches.put_nowait, item)


class Followers:
    """All clients that follow logs or metrics.

    Args:
        store: The local record.
        open_site: Opens the site of a name.
    """

    def __init__(self, store: RecordStore, open_site: Callable[[str], Session]) -> None:
        self._store, self._open = store, open_site
        self._lock = threading.Condition()
        self._sites: dict[str, list[_Follower]] = {}
        self._is_closed = False

    async def follow(self, record: Record, source: Source) -> AsyncIterator[Batch | None]:
        """Yield what comes until the training has ended; None while there are none.

        Raises:
            DlctlError: the site can't be reached, and waiting would not help.
        """
        with self._lock:
            used = {each.number for each in self._sites.get(record.site, ())}
            number = next(each for each in count() if each not in used)
            mine = _Follower(record, source, asyncio.get_running_loop(), number)
            if self._is_closed:
                return
            self._join(mine)
        try:
            while True:
                item: Batch | DlctlError | None = None
                try:
                    item = await asyncio.wait_for(mine.batches.get(), 10.0)
                except (TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
                    yield None
                    continue
                if isinstance(item, DlctlError):
                    raise item
                if item is None:
                    return
                mine.taken_bytes += item.size_bytes
                yield item
        finally:
            mine.is_gone = True

    def close(self) -> None:
        """End all followers; idempotent."""
        with self._lock:
            self._is_closed = True
            for follower in [each for mine in self._sites.values() for each in mine]:
                follower.end()
            self._lock.notify_all()

    def _join(self, follower: _Follower) -> None:
        site = follower.record.site
        if site not in self._sites:
            self._sites[site] = []
            threading.Thread(
                target=self._run, args=[site], name=f"dlctl-logs-{site}", daemon=True
            ).start()
        self._sites[site].append(follower)

    def _mine(self, site: str) -> list[_Follower]:
        """Return the followers of a site; if there are none, its thread ends."""
        with self._lock:
            mine = self._sites[site] = [f for f in self._sites[site] if not f.is_gone]
            if not mine or self._is_closed:
                del self._sites[site]
                return []
            return list(mine)

    def _run(self, site: str) -> None:
        failures, asked_at, pace = 0, float("-inf"), QueuePace()
        session: Session | None = None
        try:
            while followers := self._mine(site):
                try:
                    if session is None:
                        session = self._open(site).stay()
                    if time.monotonic() - asked_at >= STATE_EVERY_S:
                        asked_at = time.monotonic()
                        self._refresh(session, followers, pace)
                    self._look(session, [each for each in followers if each.has_room])
                    failures, pause_s = 0, _LOOK_S
                except Exception as error:
                    if not (isinstance(error, TransportError) and may_pass(error)):
                        _give_up(followers, error)
                    pause_s = RETRY_S[min(failures, len(RETRY_S) - 1)]
                    failures += 1
                with self._lock:
                    self._lock.wait_for(lambda: self._is_closed, pause_s)
        finally:
            if session is not None:
                session.close()

    def _refresh(self, session: Session, followers: list[_Follower], pace: QueuePace) -> None:
        known = {f.record.training_id: f.record for f in followers if not f.ended}
        if known:
            fresh = refresh(session, list(known.values()), self._store, pace)
            known |= {record.training_id: record for record in fresh}
        for follower in followers:
            follower.record = known.get(follower.record.training_id, follower.record)

    def _look(self, session: Session, followers: list[_Follower]) -> None:
        looks = [each.look() for each in followers]
        found = read_appended_of_many(session.transport, looks) if looks else []
        for follower, news in zip(followers, found, strict=True):
            try:
                pieces = follower.source.take(session, news)
            except Exception as error:
                if isinstance(error, TransportError) and may_pass(error):
                    raise
                _give_up([follower], error)  # the others' files may be whole
                continue
            if follower.ended and not follower.source.advanced:
                if rest := follower.source.rest():
                    follower.give(rest)
                follower.end()
            elif pieces:
                follower.give(pieces)
            follower.ended = follower.record.state.final


def _give_up(followers: list[_Follower], error: Exception) -> None:
    if not isinstance(error, DlctlError):
        error = DlctlError(f"{type(error).__name__}: {error}")
    for follower in followers:
        follower.end(error)


def position_of(source: Source) -> str:
    """Return up to which byte each file was told, as one word."""
    text = json.dumps(source.positions(), separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(zlib.compress(text)).decode()
