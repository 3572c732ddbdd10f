"""What the dashboard keeps of one real training."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from dlctl import contract
from dlctl.contract import Plan, State, Verdict
from dlctl.errors import RecordError
from dlctl.files.small_files import read_texts
from dlctl.lifecycle import read_plan
from dlctl.outputs.checkpoints import list_checkpoints
from dlctl.outputs.insight import insight, job_limit, saved_of, told_by_site
from dlctl.outputs.metrics import MetricsReader
from dlctl.outputs.unlocking import Unlocking
from dlctl.series.answers import Saved
from dlctl.series.pace import JobLimit

if TYPE_CHECKING:
    from dlctl.dashboard.feed import Json
    from dlctl.lifecycle import Session
    from dlctl.record import Record
    from dlctl.series import Run
    from dlctl.transport import Transport
    from dlctl.transport.resident import Look

_DETAILS_EVERY_S, _QUIET_DETAILS_EVERY_S = 5.0, 30.0
_BUSY_S = 30.0
"""How long the details are read often after an action, or after the state has changed."""
_BUDGET_BYTES = 48 * 1024
"""Of the bins by which a long curve is opened; a page that shows more asks for finer ones."""
_REST = 10
"""How many times as long as it takes to find the answers they hold, at least."""


class Tracked:
    """A training with its metrics and details, as new as the last look at its site."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.lock = threading.RLock()
        self._reader = MetricsReader(record, _BUDGET_BYTES, restore=False)
        self._metrics_of: State | None = None
        self.details: Json | None = None
        self._details_at = float("-inf")
        self._details_of: tuple[State, int] | None = None
        """The state and the attempt in which they were read."""
        self._busy_until = float("-inf")
        self._plan: Plan | None = None
        self._saved: list[Saved] | None = None
        self._plan_of = 0
        """The attempt for which the plan was asked for."""
        self._news = 0
        self._meaning: tuple[object, float, Json] | None = None
        """Of which news, how long it holds at least, and what it is."""

    @contextmanager
    def run(self) -> Iterator[Run]:
        """Yield the metrics; they don't grow meanwhile."""
        with self.lock:
            yield self._reader.run

    @property
    def metrics_known(self) -> bool:
        """Return whether they were read at least once, if only into the cache."""
        return self._metrics_of is not None or self._reader.seen_at > 0

    @property
    def metrics_at(self) -> float:
        """Return when the site last answered about them, Unix seconds."""
        return self._reader.seen_at

    def restore(self) -> None:
        """Begin with what the cache of this machine holds."""
        with self.lock:
            self._reader.restore()

    @property
    def limit(self) -> JobLimit | None:
        """Return how long its jobs may train, once its plan is known."""
        return job_limit(self._plan, self.record, time.time())

    @property
    def metrics_are_due(self) -> bool:
        """Return whether there may be more: the last ones are read after the end."""
        final = self._metrics_of is not None and self._metrics_of.final
        return not (final and self.record.state.final)

    @property
    def look(self) -> Look | None:
        """Return what to read of the metrics for `refresh`; None before the first look."""
        return self._reader.look

    def refresh(self, session: Session, found: Mapping[str, bytes] | None = None) -> bool:
        """Bring new metrics; return whether there were any.

        Args:
            session: Of the site.
            found: What a look has read, if there was one.

        Raises:
            TransportError
        """
        state = self.record.state
        if self._plan_of != self.record.attempt and not state.final:
            self._plan_of = self.record.attempt
            with suppress(RecordError):  # the details say what is wrong
                self._plan = read_plan(session, self.record)
        with self.lock:
            grew = self._reader.refresh(Unlocking(session.transport, self.lock), found)
            if state.final:
                self.save()
            self._metrics_of = state
            self._news += grew
        return grew

    def refine(self, session: Session, begin: float, end: float, width: int) -> None:
        """Bring finer bins of a window of steps.

        Raises:
            TransportError
        """
        with self.lock:
            self._news += self._reader.refine(
                Unlocking(session.transport, self.lock), begin, end, width
            )

    def is_fine(self, begin: float, end: float, width: int) -> bool:
        """Return whether a window of steps has so many bins, or all that there are."""
        with self.lock:
            return self._reader.is_fine(begin, end, width)

    def save(self) -> None:
        """Keep the metrics on this machine."""
        with self.lock:
            self._reader.save()

    @property
    def details_are_due(self) -> bool:
        """Return whether the details may have changed since they were read."""
        now = time.monotonic()
        if self._details_of != (self.record.state, self.record.attempt):
            return now - self._details_at > 1.0
        every_s = _DETAILS_EVERY_S if now < self._busy_until else _QUIET_DETAILS_EVERY_S
        return not self.record.state.final and now - self._details_at > every_s

    def expect_news(self) -> None:
        """Read the details often for a while: something was requested."""
        self._busy_until = time.monotonic() + _BUSY_S

    def refresh_details(self, session: Session) -> bool:
        """Bring plan, learners, checkpoints and verdicts; return whether any has changed.

        Raises:
            TransportError
        """
        record, self._details_at = self.record, time.monotonic()
        try:
            told = told_by_site(session, record).plain()
            saved = list_checkpoints(session.transport, record.job_dir)
            told["checkpoints"] = [dataclasses.asdict(each) for each in saved]
            told["verdicts"] = _verdicts(session.transport, record)
            found: Json = json.loads(json.dumps(told, default=str))
            self._plan, self._saved = contract.from_plain(Plan, found["plan"]), saved_of(saved)
        except RecordError as error:  # its folder is gone, or another version's
            found, self._saved = {"problem": error.message}, []
        now_of = (record.state, record.attempt)
        if self._details_of != now_of:
            self.expect_news()
        changed, self.details, self._details_of = found != self.details, found, now_of
        return changed

    def meaning(self) -> Json:
        """Return the six answers, utilisation in words, and the time left.

        To answer takes long if there are very many points: then it is done less often.
        """
        with self.lock:
            of, began = (self._news, self._details_at), time.monotonic()
            if self._meaning is not None:
                known_of, until, known = self._meaning
                if known_of == of or began < until:
                    return known
            found = self._find_meaning()
            took_s = time.monotonic() - began
            self._meaning = of, time.monotonic() + _REST * took_s, found
            return found

    def _find_meaning(self) -> Json:
        with self.run() as run:
            return insight(run, self.record, self._plan, self._saved).plain()


def _verdicts(transport: Transport, record: Record) -> list[dict[str, Any]]:
    """Return the verdict of each attempt that has one."""
    paths = {
        n: f"{record.job_dir}/{contract.verdict_file(n)}" for n in range(1, record.attempt + 1)
    }
    found = read_texts(transport, list(paths.values()))
    told = []
    for attempt, path in paths.items():
        if verdict := contract.understood(Verdict, found[path]):
            told.append(json.loads(contract.to_json(verdict)) | {"attempt": attempt})
    return told
