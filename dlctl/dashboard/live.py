"""The feed of real trainings: the local record, and what `dlctl.live` keeps new."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, TimeoutError
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from dlctl import contract
from dlctl.dashboard.curves import Json
from dlctl.dashboard.feed import Refused, Searches, Unknown, last_lines, row
from dlctl.errors import DlctlError, TransportError
from dlctl.files.small_files import read_texts
from dlctl.live.sites import Live
from dlctl.live.training import Training, read_details, read_news
from dlctl.logs.reader import LogReader, begin_at_tail, read
from dlctl.outputs.insight import job_limit, read_training_files
from dlctl.service.describe import output_in_words
from dlctl.service.verbs import act, offers

if TYPE_CHECKING:
    from concurrent.futures import Future

    from dlctl.lifecycle import Session
    from dlctl.logs.reader import LogPiece
    from dlctl.record import Record, RecordStore
    from dlctl.series import Run

T = TypeVar("T")
_FAST_S = 1.0
_FIRST_S = 5.0
"""How long a page waits for what is not known yet; what comes later is told as news."""
_REFINE_S = 20.0
_ACT_S = 120.0
_WAIT_S = 5.0
"""For learners' answer, which a page doesn't show."""
_SPARKS = 40
"""The list shows curves of so many of the newest trainings."""
_TAIL = 400
"""Lines of each log that a page begins with."""


class LiveFeed:
    """Trainings as their sites know them; nothing is asked while no page looks.

    Args:
        ids: only these trainings; all if empty.
        site: only those of one site.
        fits: whether a training is meant, also one that is new.
        open_site: opens the site of a name.
    """

    def __init__(
        self, store: RecordStore, open_site: Callable[[str], Session], ids: Sequence[str] = (),
        site: str | None = None, fits: Callable[[Record], bool] = lambda _: True,
    ) -> None:  # fmt: skip
        self._store, self._only, self._site, self._fits = store, frozenset(ids), site, fits
        self._lock = threading.Lock()
        self._searches = Searches()
        self._tracked: dict[str, Training] = {}
        self._looked: Counter[str] = Counter()
        self._lists = 0
        self._live = Live(store, open_site, self._records, self._read, is_wanted=self._is_wanted)
        self.versions = self._live.versions

    def trainings(self) -> list[Json]:
        """Return a row for each training, the newest first."""
        rows = []
        for place, record in enumerate(reversed(self._records())):
            tracked = self._track(record)
            if place < _SPARKS:
                tracked.metrics.restore()
            with tracked.run() as run:
                rows.append(self._row(tracked, run if tracked.metrics.seen_at else None))
        return rows

    def _row(self, tracked: Training, run: Run | None) -> Json:
        trouble = ""
        if (error := self._live.errors.get(tracked.record.site)) is not None:
            how = "dlctl keeps trying" if _may_pass(error) else "load this page again to try again"
            trouble = f"{how}: {error.message.rstrip('.')}."
        limit = job_limit(tracked.plan, tracked.record, tracked.record.site_time(time.time()))
        seen_at = tracked.metrics.seen_at
        known = {"trouble": trouble, "metrics_known": seen_at > 0, "metrics_at": seen_at}
        return row(tracked.record, run, limit) | known

    def details(self, training_id: str) -> Json:
        """Return all about one training but its curves."""
        tracked = self._find(training_id)
        if not tracked.details:
            self._wait_for(tracked)
        with tracked.run() as run:
            found = tracked.record.plain() | self._row(tracked, run)
        found["output"] = output_in_words(tracked.record)
        found["offers"] = [dataclasses.asdict(each) for each in offers(tracked.record)]
        meaning = tracked.insight().plain() if tracked.metrics.seen_at else {}
        return found | tracked.details | meaning

    @contextmanager
    def run(self, training_id: str) -> Iterator[Run]:
        """Yield the metrics; they don't grow meanwhile."""
        tracked = self._find(training_id)
        if not tracked.metrics.seen_at:
            self._wait_for(tracked)
        with tracked.run() as run:
            yield run

    def search(self, training_id: str) -> Json:
        """Return what a page shows of a search; if the site does not answer, what was known."""
        tracked = self._find(training_id)
        record = tracked.record
        self._at(record, lambda s: self._searches.reader(record).refresh(s, record), _FIRST_S)
        return self._searches.page(tracked.record)

    def refine(self, training_id: str, begin: float, end: float, width: int) -> None:
        """Bring finer bins of a window of steps; if the site does not answer, it stays coarse."""
        tracked = self._find(training_id)
        with tracked.run():
            is_fine = tracked.metrics.is_fine(begin, end, width)
        if not is_fine and tracked.record.site not in self._live.errors:
            refine = lambda session: tracked.metrics.refine(session.transport, begin, end, width)  # noqa: E731
            self._at(tracked.record, refine, _REFINE_S)

    async def log_pieces(self, training_id: str) -> AsyncIterator[Json]:
        """Yield the newest lines of the log, then those that come, until the training has ended.

        If the site does not answer, the log goes on when it does.
        """
        tracked = self._find(training_id)
        site = tracked.record.site
        reader = LogReader(tracked.record.job_dir, (), tracked.record.attempt)

        async def ask(work: Callable[[Session], Any]) -> Any:
            while True:
                while site in self._live.errors and not self.versions.closed:
                    await self.versions.wait(self.versions.newest, _FIRST_S)
                try:
                    return await asyncio.wrap_future(self._live.call(site, work))
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

        def tail(session: Session) -> list[Json]:
            reader = LogReader(record.job_dir, (), record.attempt)
            begin_at_tail(reader, session.transport, lines)
            return last_lines([*map(_lines, read(session.transport, reader))], lines)

        return self._at(record, tail, _REFINE_S) or []

    def act(self, training_id: str, verb: str, arguments: Mapping[str, Any]) -> str:
        """Do what a person asked for, and return a sentence about it."""
        tracked = self._find(training_id)
        answer = self._live.call(
            tracked.record.site,
            lambda s: act(s, tracked.record, self._store, verb, settings=arguments, wait_s=_WAIT_S),
        )
        try:
            _, sentence = answer.result(_ACT_S)
        except DlctlError as error:
            raise Refused(f"{error.message}. {error.hint}".strip(". ") + ".") from error
        except (TimeoutError, CancelledError) as error:
            if answer.cancel():
                raise Refused("the site does not answer; nothing was done") from error
            raise Refused("the site has not answered yet; look again later") from error
        tracked.expect_news()
        self._live.wake(tracked.record.site)
        return sentence

    @contextmanager
    def look(self, training_ids: Sequence[str]) -> Iterator[None]:
        """Note what a page shows."""
        with self._lock:
            self._looked.update(training_ids)
            self._lists += not training_ids
        for site in {r.site for r in self._records() if not training_ids or r.training_id in
                     training_ids}:  # fmt: skip
            self._live.wake(site)
        try:
            yield
        finally:
            with self._lock:
                self._looked.subtract(training_ids)
                self._lists -= not training_ids

    def close(self) -> None:
        """End all threads and connections; idempotent."""
        self._live.close()
        for tracked in list(self._tracked.values()):
            tracked.metrics.save()

    def _records(self) -> list[Record]:
        return [
            record for record in self._store.all()
            if (not self._only or record.training_id in self._only)
            and self._site in (None, record.site) and self._fits(record)
        ]  # fmt: skip

    def _track(self, record: Record) -> Training:
        with self._lock:
            if (tracked := self._tracked.get(record.training_id)) is None:
                tracked = self._tracked[record.training_id] = Training(
                    record, restore=False, tell=_page_fields, changed=self.versions.bump
                )
        tracked.record = record
        return tracked

    def _find(self, training_id: str) -> Training:
        for record in self._records():
            if record.training_id == training_id:
                tracked = self._track(record)
                tracked.metrics.restore()
                return tracked
        raise Unknown(f"no training {training_id!r} is known here")

    def _at(self, record: Record, work: Callable[[Session], T], timeout_s: float) -> T | None:
        """Run something at a training's site; None if it fails or takes too long."""
        answer: Future[T] = self._live.call(record.site, work)
        with suppress(DlctlError, TimeoutError, CancelledError):
            return answer.result(timeout_s)
        answer.cancel()  # if it has not begun: the page asks again
        return None

    def _wait_for(self, tracked: Training) -> None:
        """Wait a moment for what a site tells about a training; more is told as news."""

        def first(session: Session) -> None:
            if not tracked.record.state.final:
                tracked.record = self._live.refresh(session, [tracked.record])[0]
            if read_news(session, [tracked]) | read_details(session, [tracked]):
                self.versions.bump([tracked.record.training_id])

        if tracked.record.site not in self._live.errors:
            self._at(tracked.record, first, _FIRST_S)

    # What follows runs in the thread of a site.

    def _shown(self, mine: list[Record]) -> list[Record]:
        return [record for record in mine if self._looked[record.training_id] > 0]

    def _is_wanted(self, mine: list[Record]) -> bool:
        return bool(self._lists or self._shown(mine))

    def _read(self, session: Session, mine: list[Record]) -> set[str]:
        """Bring metrics, and details if pages show trainings as a whole."""
        shown = self._shown(mine)
        trackeds = [self._track(record) for record in reversed(shown or mine[-_SPARKS:])]
        found = read_news(session, trackeds)
        return found | read_details(session, trackeds) if shown else found


def _page_fields(session: Session, record: Record) -> dict[str, object]:
    """Return what a page shows that the site tells, with the verdict of each attempt."""
    fields: dict[str, object] = read_training_files(session, record).plain()
    paths = {
        n: f"{record.job_dir}/{contract.verdict_file(n)}" for n in range(1, record.attempt + 1)
    }
    found = read_texts(session.transport, list(paths.values()))
    verdicts = {n: contract.understood(contract.Verdict, found[path]) for n, path in paths.items()}
    fields["verdicts"] = [
        json.loads(contract.to_json(verdict)) | {"attempt": n}
        for n, verdict in verdicts.items() if verdict
    ]  # fmt: skip
    return fields


def _may_pass(error: DlctlError) -> bool:
    """Return whether waiting may help; trying a wrong key again might lock a user out."""
    return not isinstance(error, TransportError) or error.transient


def _lines(piece: LogPiece) -> Json:
    text = piece.content.decode(errors="replace")
    return {"attempt": piece.attempt, "source": piece.source, "text": text}
