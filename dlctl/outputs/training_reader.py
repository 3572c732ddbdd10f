"""Everything that a view of one training shows, kept new: metrics, learners, checkpoints, log."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from dlctl.contract import Plan, Status
from dlctl.errors import RecordError
from dlctl.lifecycle import learner_statuses, read_plan
from dlctl.outputs.insight import Insight, insight, saved_checkpoints
from dlctl.outputs.logs import LogReader
from dlctl.outputs.metrics import MetricsReader
from dlctl.outputs.unlocking import Unlocking
from dlctl.series.answers import Saved
from dlctl.series.run import Run

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.record import Record

_DETAILS_EVERY_S, _QUIET_DETAILS_EVERY_S = 5.0, 20.0
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
        self.plan: Plan | None = None
        self.learners: list[Status] = []
        self.checkpoints: list[Saved] = []
        self.lines: deque[str] = deque(maxlen=_LINES_KEPT)
        """The newest lines of the logs, each after its source."""

    @property
    def run(self) -> Run:
        """Return what was measured."""
        return self._metrics.run

    def refresh(self, session: Session, record: Record) -> bool:
        """Bring what is new; return whether anything was.

        Raises:
            TransportError
        """
        with self.lock:
            found = self._metrics.refresh(Unlocking(session.transport, self.lock))
        found = self._read_log(session, record) or found
        every_s = _DETAILS_EVERY_S if found else _QUIET_DETAILS_EVERY_S
        if time.monotonic() - self._asked_at >= every_s:
            self._asked_at = time.monotonic()
            try:
                found = self._read_details(session, record) or found
            except RecordError as error:  # its folder is gone, or of another version
                found, self.problem = self.problem != error.message or found, error.message
        return found

    def insight(self, record: Record) -> Insight:
        """Return what it means."""
        with self.lock:
            return insight(self.run, record, self.plan, self.checkpoints)

    def _read_log(self, session: Session, record: Record) -> bool:
        if not self._tailed:
            self._logs = LogReader(record.job_dir, None, record.attempt)
            self._logs.begin_at_tail(session.transport, _TAIL)
            self._tailed = True
        pieces = self._logs.news(session.transport)
        for piece in pieces:
            for text in piece.content.decode(errors="replace").splitlines():
                self.lines.append(f"{piece.source} | {text}")
        return bool(pieces)

    def _read_details(self, session: Session, record: Record) -> bool:
        before = (self.learners, self.checkpoints)
        if self.plan is None:
            self.plan = read_plan(session, record)
        self.learners = learner_statuses(session, record, self.plan)
        self.checkpoints = saved_checkpoints(session.transport, record)
        return (self.learners, self.checkpoints) != before
