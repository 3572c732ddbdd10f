"""One training as new as the last look at its site: metrics, details, perhaps its log."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from math import inf
from typing import TYPE_CHECKING, Any

from dlctl import contract
from dlctl.contract import METRICS, Plan, State
from dlctl.contract.metrics import Source, parse_metrics_name
from dlctl.errors import RecordError
from dlctl.files.small_files import look_at, read_appended_of_many
from dlctl.lifecycle import learner_statuses, read_plan
from dlctl.logs.reader import LogReader, Wanted, begin_at_tail
from dlctl.outputs.checkpoints import Checkpoint, list_checkpoints_of_many
from dlctl.outputs.insight import Insight, insight, saved_of
from dlctl.outputs.metrics.reader import MetricsReader
from dlctl.series.answers import Saved

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.record import Record
    from dlctl.series import Run
    from dlctl.transport.resident import Look

_DETAILS_EVERY_S, _QUIET_DETAILS_EVERY_S = 30.0, 40.0
"""How often to read what changes seldom: while the program tells news, and while it does not."""
_FIRST_DETAILS_S = 1.0
"""How soon after a change of state."""
_BUSY_EVERY_S, _BUSY_S = 5.0, 30.0
"""How often, and for how long, after something was requested."""
_AFTER_CHANGE_S = 11.0
"""For how long after a change of state."""
_REST = 10
"""How many times as long as it takes to find the answers they hold, at least."""
_LINES_KEPT = 200
_TAIL = 40


class Training:
    """All that is known of one training.

    Args:
        restore: As of `MetricsReader`.
        keeps_log: Whether to read the newest lines of the logs, too.
        tell: Reads the details, with the plan; None: they are what the learners last told.
        changed: Called with the id when metrics have come.
    """

    def __init__(
        self, record: Record, *, restore: bool = True,
        keeps_log: bool = False, tell: Callable[[Session, Record], Mapping[str, Any]] | None = None,
        changed: Callable[[list[str]], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self.record = record
        self.metrics = MetricsReader(record, restore)
        self.details: dict[str, Any] = {}
        """The details that seldom change, as in JSON; `problem` tells why there is no plan."""
        self.plan: Plan | None = None
        self.lines: deque[str] = deque(maxlen=_LINES_KEPT)
        """The newest lines of the logs, each after its source."""
        self._tell, self._changed, self._keeps_log = tell, changed, keeps_log
        self._logs, self._wanted = LogReader(record.job_dir, (), record.attempt), Wanted([], {}, 0)
        self._tailed = self._is_lively = self._has_end = False
        self._plan_of = 0
        """The attempt for which the plan was asked for."""
        self._saved: list[Saved] | None = None
        self._details_of: tuple[State, int] | None = None
        """The state and the attempt in which they were read."""
        self._details_at = self._busy_until = self._rests_until = float("-inf")
        self._insight = Insight()

    @contextmanager
    def run(self) -> Iterator[Run]:
        """Yield the metrics; they don't grow meanwhile."""
        with self.metrics.lock:
            yield self.metrics.run

    def insight(self, now: float | None = None) -> Insight:
        """Return what it means, with the ages of a time (Unix seconds), by default the present.

        To answer takes long if there are very many points: then it is done less often.
        """
        began = time.monotonic()
        if now is None and began < self._rests_until:
            return self._insight
        with self.run() as run:
            found = insight(run, self.record, self.plan, self._saved, now)
        if now is None:
            took_s = time.monotonic() - began
            self._insight, self._rests_until = found, began + _REST * took_s
        return found

    def expect_news(self) -> None:
        """Read the details often for a while: something was requested."""
        self._busy_until = time.monotonic() + _BUSY_S

    @property
    def news_are_due(self) -> bool:
        """Return whether there may be more: the last metrics are read after the end."""
        return not (self._has_end and self.record.state.final) or self._logs.advanced

    def looks(self, session: Session) -> list[Look]:
        """Return what to read for `take`.

        Raises:
            TransportError
        """
        found = [look] if (look := self.metrics.look) is not None else []
        if not self._keeps_log:
            return found
        if not self._tailed:
            begin_at_tail(self._logs, session.transport, _TAIL)
            self._tailed = True
        wanted = self._wanted = self._logs.wanted()
        job_dir = self.record.job_dir
        return [*found, look_at(job_dir, wanted.globs, wanted.offsets, wanted.limit_bytes)]

    def take(self, session: Session, found: Mapping[str, dict[str, bytes]]) -> bool:
        """Take in what looks have found, by folder; return whether the program has told anything.

        Raises:
            TransportError
        """
        record, was_known = self.record, self.metrics.seen_at > 0
        if self._plan_of != record.attempt and not record.state.final:
            self._plan_of = record.attempt
            with suppress(RecordError):  # the details say what is wrong
                self.plan = read_plan(session, record)
        measured = found.get(f"{record.job_dir}/{METRICS}")
        grew = self.metrics.refresh(session.transport, measured)
        self._has_end = record.state.final
        if self._has_end:
            self.metrics.save()
        pieces = self._logs.take(self._wanted, found.get(record.job_dir, {}))
        for piece in pieces:
            for text in piece.content.decode(errors="replace").splitlines():
                with self.metrics.lock:
                    self.lines.append(f"{piece.source} | {text}")
        if grew or not was_known:
            self._changed([record.training_id])
        # What nodes measure comes every ten seconds, whatever happens.
        has_news = grew if measured is None else any(map(_is_told, measured))
        self._is_lively = has_news or bool(pieces)
        return self._is_lively

    @property
    def details_every_s(self) -> float:
        """Return how often to read the details; infinity: they don't change now."""
        state = self.record.state
        if self._details_of != (state, self.record.attempt):
            return _FIRST_DETAILS_S
        if state.final or state in (State.QUEUED, State.PENDING):
            return inf
        if time.monotonic() < self._busy_until:
            return _BUSY_EVERY_S
        return _DETAILS_EVERY_S if self._is_lively else _QUIET_DETAILS_EVERY_S

    @property
    def details_are_due(self) -> bool:
        """Return whether it is time to read them again."""
        return time.monotonic() - self._details_at >= self.details_every_s

    def take_details(self, session: Session, saved: Sequence[Checkpoint]) -> bool:
        """Bring plan, learners and what else `tell` reads; return whether anything has changed.

        Raises:
            TransportError
        """
        self._details_at, self._saved = time.monotonic(), saved_of(saved)
        try:
            found = self._read_details(session)
            found["checkpoints"] = [asdict(each) for each in saved]
        except RecordError as error:  # its folder is gone, or another version's
            found = {"problem": error.message}
        changed, now_of = found != self.details, (self.record.state, self.record.attempt)
        if self._details_of not in (None, now_of):  # learners may tell of themselves soon
            self._busy_until = max(self._busy_until, self._details_at + _AFTER_CHANGE_S)
        self.details, self._details_of = found, now_of
        return changed

    def _read_details(self, session: Session) -> dict[str, Any]:
        if self._tell is not None:
            text = json.dumps(self._tell(session, self.record), default=str)
            found: dict[str, Any] = json.loads(text)
            self.plan = contract.from_plain(Plan, found["plan"])
            return found
        if self.plan is None:
            self.plan = read_plan(session, self.record)
        return {"learners": learner_statuses(session, self.record, self.plan)}


def read_news(session: Session, trainings: Sequence[Training]) -> set[str]:
    """Bring new metrics and lines of logs, by one call for all; return the ids of those with news.

    Raises:
        TransportError
    """
    due = [each for each in trainings if each.news_are_due]
    looks = [look for each in due for look in each.looks(session)]
    read = read_appended_of_many(session.transport, looks) if looks else []
    found = {look.folder: news for look, news in zip(looks, read, strict=True)}
    return {each.record.training_id for each in due if each.take(session, found)}


def read_details(session: Session, trainings: Iterable[Training]) -> set[str]:
    """Bring what changes seldom, once it is due for one; return the ids of those with news.

    The site's processes are a few for all of them.

    Raises:
        TransportError
    """
    mine = [each for each in trainings if each.details_every_s < inf]
    if not any(each.details_are_due for each in mine):
        return set()
    folders = [each.record.job_dir for each in mine]
    saved = list_checkpoints_of_many(session.transport, folders)
    return {
        each.record.training_id for each in mine
        if each.take_details(session, saved[each.record.job_dir])
    }  # fmt: skip


def _is_told(name: str) -> bool:
    """Return whether a file of metrics holds more than what a node measures."""
    known = parse_metrics_name(name)
    return known is not None and known[2] is not Source.NODE
