"""Look at trainings again and again: one open connection and one look for each site."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from dlctl.errors import DlctlError, RecordError, TransportError
from dlctl.lifecycle import QueuePace, refresh, stale
from dlctl.logs.reader import RETRY_S, STATE_EVERY_S
from dlctl.service.client import may_pass
from dlctl.units import format_span

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.record import Record, RecordStore

T = TypeVar("T")
Read = Callable[["Session", list["Record"]], set[str]]
"""Brings what is new of a site's trainings; returns the ids of those with news."""
_FAST_S, _SLOWEST_S, _SLOWER = 1.0, 5.0, 1.5
"""How often to look: while something happens, and while nothing does."""
_LEAVE_S = 5.0
_AFTER_FAULT_S = 10.0


class Versions:
    """A number for each training that grows when something about it changes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: dict[str, int] = {}
        self.newest = 0
        """The number of the last change of any training."""
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self.closed = False

    def bump(self, training_ids: Iterable[str]) -> None:
        """Note that trainings have changed, and wake the waiting threads."""
        with self._lock:
            changed = list(training_ids)
            if not changed:
                return
            self.newest += 1
            self._numbers |= dict.fromkeys(changed, self.newest)
            self._wake()

    def after(self, number: int) -> list[str]:
        """Return the trainings that have changed after a number."""
        with self._lock:
            return [training_id for training_id, n in self._numbers.items() if n > number]

    async def wait(self, number: int, timeout_s: float) -> None:
        """Wait until the newest number is above `number`, the time is up, or all is closed."""
        mine = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            if self.newest > number or self.closed:
                return
            self._waiting.add(mine)
        try:
            await asyncio.wait_for(mine[1].wait(), timeout_s)
        except (TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
            return
        finally:
            with self._lock:
                self._waiting.discard(mine)

    def close(self) -> None:
        """Wake all waiters for good."""
        with self._lock:
            self.closed = True
            self._wake()

    def _wake(self) -> None:
        for loop, event in self._waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)
        self._waiting.clear()


class _Site:
    """A site, its connection, and when to look there again."""

    def __init__(self, name: str, open_site: Callable[[str], Session]) -> None:
        self.name, self._open = name, open_site
        self._session: Session | None = None
        self.calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.thread: threading.Thread | None = None
        self.pace, self.asked_at = QueuePace(), float("-inf")
        self.pause_s: float | None = _FAST_S
        """Until the next look; None: not before something is asked for."""
        self.failures, self.retry_at = 0, 0.0
        self.known: dict[str, Record] = {}
        """The trainings as listeners were last told of them."""

    @property
    def session(self) -> Session:
        """Return the open session, for the one thread that looks."""
        if self._session is None:
            self._session = self._open(self.name).stay()
        return self._session

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()


class Live:
    """Keeps trainings new: by `look` in the caller's thread, or in one thread for each site.

    Args:
        store: Where changes of states are kept.
        open_site: Opens the site of a name.
        chosen: Returns the trainings as the record knows them; read at each look.
        read: Brings more than the states.
        asks: Whether the state of a training is asked for.
        is_wanted: Whether anybody wants news of a site's trainings.
        hangs_up: Whether to end the connection to a site while nobody does.
    """

    def __init__(
        self, store: RecordStore, open_site: Callable[[str], Session],
        chosen: Callable[[], list[Record]], read: Read | None = None,
        asks: Callable[[Record], object] = lambda r: not r.state.final or r.notice_tries,
        is_wanted: Callable[[list[Record]], bool] = lambda _: True, *, hangs_up: bool = False,
    ) -> None:  # fmt: skip
        self.versions = Versions()
        self.errors: dict[str, DlctlError] = {}
        """By site: why it does not answer."""
        self._fault: Exception | None = None
        self._store, self._open, self._chosen, self._read = store, open_site, chosen, read
        self._asks, self._is_wanted, self._hangs_up = asks, is_wanted, hangs_up
        self._lock, self._closed = threading.Lock(), False
        self._sites: dict[str, _Site] = {}
        self.records = chosen()
        """The trainings as the last look has found them."""

    @property
    def ended(self) -> bool:
        """Return whether all trainings have ended."""
        return all(record.state.final for record in self.records)

    def look(self) -> set[str]:
        """Look at all sites now; return the ids of trainings of which anything is new.

        Raises:
            DlctlError: a site can't be reached, and waiting would not help.
        """
        found: set[str] = set()
        self._choose()
        for name in sorted({record.site for record in self.records} | set(self._sites)):
            if time.monotonic() >= (site := self._site(name)).retry_at:
                found |= self._look_at(site)
        self.check()
        return found

    def looks(self, least_s: float = 0.0) -> Iterator[tuple[set[str], bool]]:
        """Look until all have ended, and once more for what came at the end.

        Yields:
            Of which trainings anything is new, and whether the look was the last one.
        """
        while True:
            ended = self.ended
            yield self.look(), ended
            if ended:
                return
            pauses = [site.pause_s or _SLOWEST_S for site in self._sites.values()]
            time.sleep(max(least_s, min([*pauses, _SLOWEST_S])))

    def start(self) -> None:
        """Look on in threads, until `close`; `versions` tell of news, `check` of trouble."""
        self._choose()
        for name in {record.site for record in self.records}:
            self._started(name)

    def check(self) -> None:
        """Raise the error of a look, if waiting does not help."""
        for error in (self._fault, *self.errors.values()):
            if error is not None and not (isinstance(error, DlctlError) and may_pass(error)):
                raise error

    def trouble(self, record: Record, seen_at: float, what: str, now: float) -> str:
        """Return why the site of a training has not answered, and how old what is known is; or "".

        Args:
            seen_at: when the site last answered; 0 if never.
            what: is known, as the beginning of a sentence.
            now: Unix seconds.
        """
        if (error := self.errors.get(record.site)) is None and self._site(record.site).known:
            return ""
        why = error.message if error else f"asking {record.site}"
        ago = format_span(max(0.0, now - seen_at))
        return f"{why}; {what} as of {ago} ago" if seen_at else why

    def call(self, name: str, work: Callable[[Session], T]) -> Future[T]:
        """Let the thread of a site run something there, and look for news then."""
        site, future = self._started(name), Future[T]()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(work(site.session))
            except BaseException as error:  # the caller that waits gets it
                future.set_exception(error)

        if self._closed:
            future.cancel()
        site.calls.put(run)
        return future

    def wake(self, name: str) -> None:
        """Look for news of a site's trainings now, and often for a while."""
        site = self._started(name)
        site.pause_s, site.asked_at = _FAST_S, float("-inf")
        site.calls.put(_nothing)

    def refresh(self, session: Session, records: Sequence[Record]) -> list[Record]:
        """Return records as their site knows them now; for the thread of that site."""
        known = refresh(session, records, self._store, self._site(records[0].site).pace)
        fresh = {record.training_id: record for record in known}
        with self._lock:
            self.records = [fresh.get(r.training_id, r) for r in self.records]
        return known

    def close(self) -> None:
        """End all threads and connections; idempotent."""
        self._closed = True
        self.versions.close()
        sites, until = list(self._sites.values()), time.monotonic() + _LEAVE_S
        for site in sites:
            site.calls.put(_nothing)
        for site in sites:
            if site.thread is None:
                site.close()
            else:
                site.thread.join(max(0.0, until - time.monotonic()))

    def _site(self, name: str) -> _Site:
        with self._lock:
            return self._sites.setdefault(name, _Site(name, self._open))

    def _started(self, name: str) -> _Site:
        site = self._site(name)
        with self._lock:
            if site.thread is None:
                site.thread = threading.Thread(
                    target=self._run, args=[site], name=f"dlctl-{name}", daemon=True
                )
                site.thread.start()
        return site

    def _run(self, site: _Site) -> None:
        pause_s: float | None = 0.0
        while True:
            call = _nothing
            with suppress(queue.Empty):
                call = site.calls.get(timeout=pause_s)
            if self._closed:
                break
            call()
            try:
                self._look_at(site)
                pause_s = site.pause_s
            except Exception as error:  # without this thread all listeners would wait for ever
                self._fault, pause_s = error, _AFTER_FAULT_S
                if os.environ.get("DLCTL_DEBUG"):
                    traceback.print_exc()
        site.close()

    def _choose(self) -> None:
        with self._lock, suppress(RecordError):  # a write tells of it; what is known goes on
            self.records = self._chosen()

    def _of(self, site: _Site) -> list[Record]:
        return [record for record in self.records if record.site == site.name]

    def _look_at(self, site: _Site) -> set[str]:
        """Look for news of a site's trainings; return the ids of those that have any."""
        self._choose()
        mine = self._of(site)
        if not self._is_wanted(mine):
            site.pause_s = None
            if self._hangs_up:
                site.close()
            return set()
        try:
            still_open = [record for record in mine if self._asks(record)]
            # The states come first: what was measured before an end is there once it is known.
            if still_open and time.monotonic() - site.asked_at >= STATE_EVERY_S:
                site.asked_at = time.monotonic()
                self.refresh(site.session, still_open)
            mine = self._of(site)
            changed = _untold(site, mine)
            self.versions.bump(changed)
            if self._read is not None and mine:
                changed |= self._read(site.session, mine)
        except DlctlError as error:
            return self._failed(site, mine, error)
        site.failures = 0
        if self.errors.pop(site.name, None) is not None:
            changed |= {record.training_id for record in mine}
        self.versions.bump(changed)
        site.pause_s = _FAST_S if changed else min((site.pause_s or _FAST_S) * _SLOWER, _SLOWEST_S)
        return changed

    def _failed(self, site: _Site, mine: list[Record], error: DlctlError) -> set[str]:
        """Note that a site does not answer; try again after a while, if that may help."""
        site.failures += 1
        site.pause_s = RETRY_S[min(site.failures, len(RETRY_S)) - 1]
        site.retry_at = time.monotonic() + site.pause_s
        if isinstance(error, TransportError):
            stale([record for record in mine if not record.state.final], error, self._store)
            if not error.transient:  # to try a wrong key again might lock a user out
                site.pause_s = None
        self.errors[site.name] = error
        self._choose()
        found = {record.training_id for record in mine}
        self.versions.bump(found)
        return found


def live_of(
    store: RecordStore, open_site: Callable[[str], Session], records: Sequence[Record],
    read: Read,
) -> Live:  # fmt: skip
    """Return what keeps some trainings new; one that is deleted meanwhile stays as it was."""

    def chosen() -> list[Record]:
        known = {record.training_id: record for record in store.all()}
        return [known.get(record.training_id, record) for record in records]

    return Live(store, open_site, chosen, read, asks=lambda _: True)


def _untold(site: _Site, mine: list[Record]) -> set[str]:
    """Return whose record has changed since the last call, whichever dlctl has changed it."""
    now = {record.training_id: record for record in mine}
    before, site.known = site.known, now
    return {name for name in {**before, **now} if not _same(before.get(name), now.get(name))}


def _same(before: Record | None, now: Record | None) -> bool:
    """Return whether nothing but the moment differs at which it was seen."""
    if before is now or before is None or now is None:
        return before is now
    return before == replace(now, seen_at=before.seen_at)


def _nothing() -> None:
    """Stand for a call when none came."""
