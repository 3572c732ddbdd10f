"""Everything that a view of one training shows, kept new: metrics, learners, checkpoints, log."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dlctl.contract import Plan, State, Status
from dlctl.contract.metrics import Source, parse_metrics_name
from dlctl.errors import RecordError
from dlctl.lifecycle import learner_statuses, read_plan
from dlctl.logs.beginning import begin_at_tail
from dlctl.logs.reader import LogReader
from dlctl.outputs.checkpoints import list_checkpoints_of_many
from dlctl.outputs.insight import Insight, insight, saved_of
from dlctl.outputs.joint_look import look
from dlctl.outputs.metrics import MetricsReader
from dlctl.outputs.unlocking import Unlocking
from dlctl.series.answers import Saved
from dlctl.series.run import Run

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.record import Record

_DETAILS_EVERY_S, _QUIET_DETAILS_EVERY_S = 20.0, 40.0
_LINES_KEPT = 200
_TAIL = 40


class TrainingReader:
    """Keeps what is known of one training as new as its site tells."""

    def __init__(self, record: Record) -> None:
        self.lock = threading.RLock()
        """Held while a frame is drawn, so that the metrics do not grow meanwhile."""
        self.problem = ""
        """Why there is no plan."""
        self._metrics = MetricsReader(record)
        self._logs = LogReader(record.job_dir)
        self._tailed = False
        self._asked_at = float("-inf")
        self._has_grown = self._told_details = False
        self.plan: Plan | None = None
        self.learners: list[Status] = []
        self.checkpoints: list[Saved] = []
        self.lines: deque[str] = deque(maxlen=_LINES_KEPT)
        """The newest lines of the logs, each after its source."""

    @property
    def run(self) -> Run:
        """Return what was measured."""
        return self._metrics.run

    @property
    def seen_at(self) -> float:
        """Return when the site last answered about the metrics (Unix seconds here); 0 if never."""
        return self._metrics.seen_at

    def refresh(self, session: Session, record: Record) -> bool:
        """Bring what is new; return whether anything was.

        Raises:
            TransportError
        """
        self._has_grown = self._read_news(session, record)
        return self._has_grown

    def details_are_due(self, record: Record) -> bool:
        """Return whether plan, learners and checkpoints are to be read again."""
        if record.state in (State.QUEUED, State.PENDING) and self._told_details:
            return False  # nothing changes until its job begins
        every_s = _DETAILS_EVERY_S if self._has_grown else _QUIET_DETAILS_EVERY_S
        return time.monotonic() - self._asked_at >= every_s

    def read_details(self, session: Session, record: Record, saved: list[Saved]) -> bool:
        """Bring plan and learners, take the checkpoints; return whether anything was new.

        Raises:
            TransportError
        """
        self._asked_at = time.monotonic()
        before = (_without_beats(self.learners), self.checkpoints, self.problem)
        try:
            if self.plan is None:
                self.plan = read_plan(session, record)
            self.learners = learner_statuses(session, record, self.plan)
            self.checkpoints, self._told_details, self.problem = saved, True, ""
        except RecordError as error:  # its folder is gone, or of another version
            self.problem = error.message
        return (_without_beats(self.learners), self.checkpoints, self.problem) != before

    def insight(self, record: Record, now: float | None = None) -> Insight:
        """Return what it means, with the ages of a time (Unix seconds), by default the present."""
        saved = self.checkpoints if self._told_details else None
        with self.lock:
            return insight(self.run, record, self.plan, saved, now)

    def _read_news(self, session: Session, record: Record) -> bool:
        """Bring the lines of the metrics and of the logs: after the first look, in one script."""
        transport, offsets = session.transport, self._metrics.offsets
        if not self._tailed:
            self._logs = LogReader(record.job_dir, (), record.attempt)
            begin_at_tail(self._logs, transport, _TAIL)
            self._tailed = True
        found = look(transport, self._logs, offsets)
        with self.lock:
            released = Unlocking(transport, self.lock)
            grew = self._metrics.refresh(released, found.metrics)
        pieces = self._logs.take(found.asked, found.logs)
        for piece in pieces:
            for text in piece.content.decode(errors="replace").splitlines():
                self.lines.append(f"{piece.source} | {text}")
        # What nodes measure comes every ten seconds, whatever happens.
        return bool(pieces) or (
            grew if found.metrics is None else any(map(_is_told, found.metrics))
        )


def refresh_details(session: Session, readers: Sequence[tuple[TrainingReader, Record]]) -> set[str]:
    """Bring what changes seldom of all trainings of a site, once it is due for one of them.

    The site's processes are a few for all of them. Returns the ids of trainings with news.

    Raises:
        TransportError
    """
    if not any(reader.details_are_due(record) for reader, record in readers):
        return set()
    folders = [record.job_dir for _, record in readers]
    found = list_checkpoints_of_many(session.transport, folders)
    return {
        record.training_id for reader, record in readers
        if reader.read_details(session, record, saved_of(found[record.job_dir]))
    }  # fmt: skip


def _is_told(name: str) -> bool:
    """Return whether a file of metrics holds more than what a node measures."""
    known = parse_metrics_name(name)
    return known is not None and known[2] is not Source.NODE


def _without_beats(statuses: list[Status]) -> list[Status]:
    """Return statuses that are equal if nothing but a heartbeat came."""
    return [replace(status, heartbeat_at=0.0) for status in statuses]
