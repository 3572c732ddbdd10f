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

from dlctl.dashboard.feed import Json, Refused, Unknown
from dlctl.dashboard.site_worker import SiteWorker
from dlctl.dashboard.summary import row
from dlctl.dashboard.tracked import Tracked
from dlctl.dashboard.verbs import act
from dlctl.dashboard.versions import Versions
from dlctl.errors import DlctlError, TransportError
from dlctl.lifecycle import refresh, stale
from dlctl.outputs.logs import LogReader

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.outputs.logs import LogPiece
    from dlctl.record import Record, RecordStore
    from dlctl.series import Run

_FAST_S, _SLOWEST_S, _SLOWER = 1.0, 4.0, 1.3
_STATE_EVERY_S = 2.0
_RETRY_S = 10.0
_FIRST_S = 20.0
"""How long a page waits for what is not known yet."""
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
        self._tracked: dict[str, Tracked] = {}
        self._workers: dict[str, SiteWorker] = {}
        self._looked: Counter[str] = Counter()
        self._lists = 0
        self._asked_at: dict[str, float] = {}
        self._pause_s: dict[str, float] = {}

    def trainings(self) -> list[Json]:
        """Return a row for each training, the newest first."""
        rows = []
        for record in reversed(self._records()):
            tracked = self._track(record)
            with tracked.run() as run:
                rows.append(row(_plain(record), run if tracked.metrics_known else None))
        return rows

    def details(self, training_id: str) -> Json:
        """Return all about one training but its curves."""
        tracked = self._known(training_id)
        with tracked.run() as run:
            found = _plain(tracked.record) | row(_plain(tracked.record), run)
        return found | (tracked.details or {}) | tracked.meaning()

    @contextmanager
    def run(self, training_id: str) -> Iterator[Run]:
        """Yield the metrics; they don't grow meanwhile."""
        with self._known(training_id).run() as run:
            yield run

    def refine(self, training_id: str, begin: float, end: float, width: int) -> None:
        """Bring finer bins of a window of steps; if the site does not answer, it stays coarse."""
        tracked = self._find(training_id)
        if tracked.is_fine(begin, end, width):
            return
        worker = self._worker(tracked.record.site)
        asked = worker.call(lambda session: tracked.refine(session, begin, end, width))
        with suppress(DlctlError, TimeoutError, CancelledError):
            asked.result(_FIRST_S)
        asked.cancel()  # if it has not begun: the page asks again

    async def log_pieces(self, training_id: str) -> AsyncIterator[Json]:
        """Yield the newest lines of the log, then those that come, until the training has ended."""
        tracked = self._find(training_id)
        worker = self._worker(tracked.record.site)
        reader = LogReader(tracked.record.job_dir, None, tracked.record.attempt)

        async def ask(work: Callable[[Session], Any]) -> Any:
            try:
                return await asyncio.wrap_future(worker.call(work))
            except DlctlError as error:
                raise Refused(error.message) from error

        await ask(lambda session: reader.begin_at_tail(session.transport, _TAIL))
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
                return self._track(record)
        raise Unknown(f"no training {training_id!r} is known here")

    def _known(self, training_id: str) -> Tracked:
        """Return a training whose metrics and details were read at least once, if that works."""
        tracked = self._find(training_id)
        if tracked.details is None or not tracked.metrics_known:
            asked = self._worker(tracked.record.site).call(
                lambda session: self._read_first(session, tracked)
            )
            # If it fails, the page shows what the local record knows, and asks again.
            with suppress(DlctlError, TimeoutError, CancelledError):
                asked.result(_FIRST_S)
            asked.cancel()
        return tracked

    def _worker(self, site: str) -> SiteWorker:
        with self._lock:
            if site not in self._workers:
                self._workers[site] = SiteWorker(site, self._open, self._look_at)
            return self._workers[site]

    # What follows runs in the thread of a site.

    def _read_first(self, session: Session, tracked: Tracked) -> None:
        if not tracked.record.state.final:
            tracked.record = refresh(session, [tracked.record], self._store)[0]
        self._read(session, tracked)

    def _read(self, session: Session, tracked: Tracked) -> bool:
        found = False
        if tracked.metrics_are_due:
            found = tracked.refresh(session)
        if tracked.details_are_due:
            found = tracked.refresh_details(session) or found
        return found

    def _look_at(self, worker: SiteWorker) -> float | None:
        """Look for news of a site's trainings; return when to look again."""
        site = worker.name
        mine = [record for record in self._records() if record.site == site]
        shown = [record for record in mine if self._looked[record.training_id] > 0]
        if not self._lists and not shown:
            return None
        try:
            changed = self._refresh_states(worker.session, site, mine)
            changed |= self._refresh_shown(worker.session, shown or mine[-_SPARKS:], bool(shown))
        except DlctlError as error:
            if isinstance(error, TransportError):
                stale([r for r in mine if not r.state.final], error, self._store)
                self.versions.bump(record.training_id for record in mine)
            return _RETRY_S
        self.versions.bump(changed)
        slower = min(self._pause_s.get(site, _FAST_S) * _SLOWER, _SLOWEST_S)
        self._pause_s[site] = _FAST_S if changed else slower
        return self._pause_s[site]

    def _refresh_states(self, session: Session, site: str, mine: list[Record]) -> set[str]:
        if time.monotonic() - self._asked_at.get(site, float("-inf")) < _STATE_EVERY_S:
            return set()
        self._asked_at[site] = time.monotonic()
        before = [record for record in mine if not record.state.final or record.notice_tries]
        after = refresh(session, before, self._store)
        pairs = zip(before, after, strict=True)
        quiet = {"seen_at": 0.0}
        return {
            new.training_id for old, new in pairs
            if dataclasses.replace(old, **quiet) != dataclasses.replace(new, **quiet)  # type: ignore[arg-type]
        }  # fmt: skip

    def _refresh_shown(self, session: Session, shown: list[Record], whole: bool) -> set[str]:
        """Bring metrics, and details if pages show them as a whole."""
        changed = set()
        for record in reversed(shown):
            tracked = self._track(record)
            if whole and self._read(session, tracked):
                changed.add(record.training_id)
            elif not whole and tracked.metrics_are_due:
                was_known = tracked.metrics_known
                if tracked.refresh(session) or not was_known:
                    self.versions.bump([record.training_id])
                    changed.add(record.training_id)
        return changed


def _plain(record: Record) -> Json:
    return dataclasses.asdict(record) | {"state": str(record.state)}


def _lines(piece: LogPiece) -> Json:
    text = piece.content.decode(errors="replace")
    return {"attempt": piece.attempt, "source": piece.source, "text": text}
