"""The feed of real trainings: the local record, and one open connection for each site."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, TimeoutError
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from dlctl.dashboard.feed import Json, Refused, Unknown, last_lines
from dlctl.dashboard.searches import Searches
from dlctl.dashboard.site_worker import SiteWorker
from dlctl.dashboard.summary import row
from dlctl.dashboard.tracked import Tracked
from dlctl.dashboard.versions import Versions
from dlctl.errors import DlctlError, TransportError
from dlctl.files.small_files import read_appended_of_many
from dlctl.lifecycle import QueuePace, refresh, stale
from dlctl.logs.beginning import begin_at_tail
from dlctl.logs.reader import LogReader
from dlctl.service.describe import told_output
from dlctl.service.verbs import act, offers

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.logs.reader import LogPiece
    from dlctl.record import Record, RecordStore
    from dlctl.series import Run

_FAST_S, _SLOWEST_S, _SLOWER = 1.0, 4.0, 1.3
_STATE_EVERY_S = 2.0
_RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0)
"""After how long to ask a site again that did not answer so many times."""
_FIRST_S = 5.0
"""How long a page waits for what is not known yet; what comes later is told as news."""
_REFINE_S = 20.0
_ACT_S = 120.0
_SPARKS = 40
"""Of how many of the newest trainings the list shows a curve."""
_TAIL = 400
"""Lines of each log that a page begins with."""


class LiveFeed:
    """Trainings as their sites know them; nothing is asked while no page looks.

    Args:
        ids: only these trainings; all if empty.
        site: only those of one site.
        open_site: opens the site of a name.
    """

    def __init__(
        self, store: RecordStore, open_site: Callable[[str], Session], ids: Sequence[str] = (),
        site: str | None = None,
    ) -> None:  # fmt: skip
        self.versions = Versions()
        self._store, self._open = store, open_site
        self._only, self._site = frozenset(ids), site
        self._lock = threading.Lock()
        self._searches = Searches()
        self._tracked: dict[str, Tracked] = {}
        self._workers: dict[str, SiteWorker] = {}
        self._looked: Counter[str] = Counter()
        self._lists = 0
        self._asked_at: dict[str, float] = {}
        self._paces: dict[str, QueuePace] = {}
        self._pause_s: dict[str, float] = {}
        self._trouble: dict[str, str] = {}
        """By site: why it does not answer."""
        self._failures: Counter[str] = Counter()
        self._told: dict[str, Record] = {}
        """The records as pages were last told of them."""

    def trainings(self) -> list[Json]:
        """Return a row for each training, the newest first."""
        rows = []
        for place, record in enumerate(reversed(self._records())):
            tracked = self._track(record)
            if place < _SPARKS:
                tracked.restore()
            with tracked.run() as run:
                rows.append(self._row(tracked, run if tracked.metrics_known else None))
        return rows

    def _row(self, tracked: Tracked, run: Run | None) -> Json:
        trouble = self._trouble.get(tracked.record.site, "")
        known = {"trouble": trouble, "metrics_known": tracked.metrics_known,
                 "metrics_at": tracked.metrics_at}  # fmt: skip
        return row(tracked.record, run, tracked.limit) | known

    def details(self, training_id: str) -> Json:
        """Return all about one training but its curves."""
        tracked = self._find(training_id)
        if tracked.details is None:
            self._wait_for(tracked)
        with tracked.run() as run:
            found = tracked.record.plain() | self._row(tracked, run)
        found["output"] = told_output(tracked.record)
        found["offers"] = [dataclasses.asdict(each) for each in offers(tracked.record.state)]
        meaning = tracked.meaning() if tracked.metrics_known else {}
        return found | (tracked.details or {}) | meaning

    @contextmanager
    def run(self, training_id: str) -> Iterator[Run]:
        """Yield the metrics; they don't grow meanwhile."""
        tracked = self._find(training_id)
        if not tracked.metrics_known:
            self._wait_for(tracked)
        with tracked.run() as run:
            yield run

    def search(self, training_id: str) -> Json:
        """Return what a page shows of a search; if the site does not answer, what was known."""
        tracked = self._find(training_id)
        record = tracked.record
        asked = self._worker(record.site).call(lambda s: self._searches.refresh(s, record))
        with suppress(DlctlError, TimeoutError, CancelledError):
            asked.result(_FIRST_S)
        asked.cancel()
        return self._searches.page(tracked.record)

    def refine(self, training_id: str, begin: float, end: float, width: int) -> None:
        """Bring finer bins of a window of steps; if the site does not answer, it stays coarse."""
        tracked = self._find(training_id)
        if tracked.record.site in self._trouble or tracked.is_fine(begin, end, width):
            return
        worker = self._worker(tracked.record.site)
        asked = worker.call(lambda session: tracked.refine(session, begin, end, width))
        with suppress(DlctlError, TimeoutError, CancelledError):
            asked.result(_REFINE_S)
        asked.cancel()  # if it has not begun: the page asks again

    async def log_pieces(self, training_id: str) -> AsyncIterator[Json]:
        """Yield the newest lines of the log, then those that come, until the training has ended.

        If the site does not answer, the log goes on when it does.
        """
        tracked = self._find(training_id)
        site = tracked.record.site
        worker = self._worker(site)
        reader = LogReader(tracked.record.job_dir, (), tracked.record.attempt)

        async def ask(work: Callable[[Session], Any]) -> Any:
            while True:
                while site in self._trouble and not self.versions.closed:
                    await self.versions.wait(self.versions.newest, _FIRST_S)
                try:
                    return await asyncio.wrap_future(worker.call(work))
                except DlctlError as error:
                    if not _may_pass(error) or self.versions.closed:
                        raise Refused(error.message) from error

        await ask(lambda session: begin_at_tail(reader, session.transport, _TAIL))
        while not self.versions.closed:
            ended = tracked.record.state.final
            for piece in await ask(lambda session: reader.news(session.transport)):
                yield _lines(piece)
            if ended and not reader.advanced:
                for piece in reader.rest():
                    yield _lines(piece)
                return
            if not reader.advanced:
                await self.versions.wait(self.versions.newest, _FAST_S)

    def log_tail(self, training_id: str, lines: int) -> list[Json]:
        """Return the last lines of the newest attempt's log."""
        record = self._find(training_id).record

        def read(session: Session) -> list[Json]:
            reader = LogReader(record.job_dir, (), record.attempt)
            begin_at_tail(reader, session.transport, lines)
            found = reader.news(session.transport)
            while reader.advanced:
                found += reader.news(session.transport)
            return last_lines([_lines(piece) for piece in [*found, *reader.rest()]], lines)

        asked = self._worker(record.site).call(read)
        with suppress(DlctlError, TimeoutError, CancelledError):
            return asked.result(_REFINE_S)
        asked.cancel()
        return []

    def act(self, training_id: str, verb: str, arguments: Mapping[str, Any]) -> str:
        """Do what a person asked for, and return a sentence about it."""
        tracked = self._find(training_id)
        worker = self._worker(tracked.record.site)
        asked = worker.call(lambda s: act(s, tracked.record, self._store, verb, arguments))
        try:
            told = asked.result(_ACT_S)
        except DlctlError as error:
            raise Refused(f"{error.message}. {error.hint}".strip(". ") + ".") from error
        except (TimeoutError, CancelledError) as error:
            if asked.cancel():
                raise Refused("the site does not answer; nothing was done") from error
            raise Refused("the site has not answered yet; look again later") from error
        self._asked_at.pop(tracked.record.site, None)
        tracked.expect_news()
        worker.wake()
        return told

    @contextmanager
    def look(self, training_ids: Sequence[str]) -> Iterator[None]:
        """Note what a page shows."""
        with self._lock:
            self._looked.update(training_ids)
            self._lists += not training_ids
        for site in {r.site for r in self._records() if not training_ids or r.training_id in
                     training_ids}:  # fmt: skip
            self._pause_s[site] = _FAST_S
            self._worker(site).wake()
        try:
            yield
        finally:
            with self._lock:
                self._looked.subtract(training_ids)
                self._lists -= not training_ids

    def close(self) -> None:
        """End all threads and connections; idempotent."""
        self.versions.close()
        for worker in list(self._workers.values()):
            worker.close()
        for tracked in list(self._tracked.values()):
            tracked.save()

    def _records(self) -> list[Record]:
        return [
            record for record in self._store.all()
            if (not self._only or record.training_id in self._only)
            and self._site in (None, record.site)
        ]  # fmt: skip

    def _track(self, record: Record) -> Tracked:
        with self._lock:
            tracked = self._tracked.setdefault(record.training_id, Tracked(record))
        tracked.record = record
        return tracked

    def _find(self, training_id: str) -> Tracked:
        for record in self._records():
            if record.training_id == training_id:
                tracked = self._track(record)
                tracked.restore()
                return tracked
        raise Unknown(f"no training {training_id!r} is known here")

    def _wait_for(self, tracked: Tracked) -> None:
        """Wait a moment for what a site tells about a training."""
        if tracked.record.site in self._trouble:
            return
        asked = self._worker(tracked.record.site).call(
            lambda session: self._read_first(session, tracked)
        )
        # If it fails, the page shows what is known here, and is told when there is more.
        with suppress(DlctlError, TimeoutError, CancelledError):
            asked.result(_FIRST_S)
        asked.cancel()

    def _worker(self, site: str) -> SiteWorker:
        with self._lock:
            if site not in self._workers:
                self._workers[site] = SiteWorker(site, self._open, self._look_at)
            return self._workers[site]

    # What follows runs in the thread of a site.

    def _read_first(self, session: Session, tracked: Tracked) -> None:
        if not tracked.record.state.final:
            tracked.record = self._refresh(session, [tracked.record])[0]
        if self._read(session, tracked):
            self.versions.bump([tracked.record.training_id])

    def _read(
        self, session: Session, tracked: Tracked, news: Mapping[str, bytes] | None = None
    ) -> bool:
        found = False
        if tracked.metrics_are_due:
            found = tracked.refresh(session, news)
        if tracked.details_are_due:
            found = tracked.refresh_details(session) or found
        return found

    def _look_at(self, worker: SiteWorker) -> float | None:
        """Look for news of a site's trainings; return when to look again."""
        site = worker.name
        mine = self._records_of(site)
        if not self._lists and not self._shown(mine):
            return None
        try:
            self._refresh_states(worker.session, site, mine)
            mine = self._records_of(site)
            changed, shown = self._untold(mine), self._shown(mine)
            self.versions.bump(changed)
            changed |= self._refresh_shown(worker.session, shown or mine[-_SPARKS:], bool(shown))
        except DlctlError as error:
            return self._failed(site, mine, error)
        self._failures.pop(site, None)
        if self._trouble.pop(site, None) is not None:
            changed |= {record.training_id for record in mine}
        self.versions.bump(changed)
        slower = min(self._pause_s.get(site, _FAST_S) * _SLOWER, _SLOWEST_S)
        self._pause_s[site] = _FAST_S if changed else slower
        return self._pause_s[site]

    def _records_of(self, site: str) -> list[Record]:
        return [record for record in self._records() if record.site == site]

    def _shown(self, mine: list[Record]) -> list[Record]:
        return [record for record in mine if self._looked[record.training_id] > 0]

    def _failed(self, site: str, mine: list[Record], error: DlctlError) -> float | None:
        """Note that a site does not answer; return when to ask again, if waiting may help."""
        self._failures[site] += 1
        how = "dlctl keeps trying" if _may_pass(error) else "load this page again to try again"
        self._trouble[site] = f"{how}: {error.message.rstrip('.')}."
        for record in mine:
            self._track(record).save()
        if isinstance(error, TransportError):
            stale([record for record in mine if not record.state.final], error, self._store)
        self.versions.bump(record.training_id for record in mine)
        if not _may_pass(error):
            return None
        return _RETRY_S[min(self._failures[site], len(_RETRY_S)) - 1]

    def _refresh_states(self, session: Session, site: str, mine: list[Record]) -> None:
        if time.monotonic() - self._asked_at.get(site, float("-inf")) >= _STATE_EVERY_S:
            self._asked_at[site] = time.monotonic()
            asked = [record for record in mine if not record.state.final or record.notice_tries]
            self._refresh(session, asked)

    def _refresh(self, session: Session, records: list[Record]) -> list[Record]:
        pace = self._paces.setdefault(session.site.name, QueuePace())
        return refresh(session, records, self._store, pace)

    def _untold(self, mine: list[Record]) -> set[str]:
        """Return whose record has changed since the last call, whichever dlctl has changed it."""
        found = {}
        for record in mine:
            known = dataclasses.replace(record, seen_at=0.0)
            if self._told.get(record.training_id) != known:
                found[record.training_id] = known
        self._told |= found
        return set(found)

    def _refresh_shown(self, session: Session, shown: list[Record], whole: bool) -> set[str]:
        """Bring metrics, and details if pages show them as a whole."""
        changed = set()
        trackeds = [self._track(record) for record in reversed(shown)]
        found = _look_at_metrics(session, [each for each in trackeds if each.metrics_are_due])
        for tracked in trackeds:
            training_id = tracked.record.training_id
            news = found.get(training_id)
            if whole and self._read(session, tracked, news):
                changed.add(training_id)
            elif not whole and tracked.metrics_are_due:
                was_known = tracked.metrics_known
                if tracked.refresh(session, news) or not was_known:
                    self.versions.bump([training_id])
                    changed.add(training_id)
        return changed


def _look_at_metrics(session: Session, trackeds: Sequence[Tracked]) -> dict[str, dict[str, bytes]]:
    """Return what is new of the metrics of all that were opened before, by one call."""
    looks = {each.record.training_id: look for each in trackeds if (look := each.look)}
    if not looks:
        return {}
    found = read_appended_of_many(session.transport, list(looks.values()))
    return dict(zip(looks, found, strict=True))


def _may_pass(error: DlctlError) -> bool:
    """Return whether waiting may help; trying a wrong key again might lock a user out."""
    return not isinstance(error, TransportError) or error.transient


def _lines(piece: LogPiece) -> Json:
    text = piece.content.decode(errors="replace")
    return {"attempt": piece.attempt, "source": piece.source, "text": text}
