"""What is known of one training: record, plan, learners, verdict, and what they mean."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dlctl.contract import State
from dlctl.contract.ground.amounts import format_span
from dlctl.errors import RecordError, TransportError
from dlctl.service.made import next_fetch, told_output
from dlctl.units import unix_seconds

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.lifecycle.told import Told
    from dlctl.outputs.insight import Insight
    from dlctl.record import Record, RecordStore
    from dlctl.tell import Tell


def starts(record: Record, now: float) -> str:
    """Return `starts at about 14:30, in 40 min`; "" if nobody knows.

    Args:
        now: Unix seconds.
    """
    in_s = record.starts_at - now
    if record.state is not State.PENDING or in_s <= 0:
        return ""
    form = "%H:%M" if in_s < 20 * 3600 else "%Y-%m-%d %H:%M"
    at = time.strftime(form, time.localtime(record.starts_at))
    return f"starts at about {at}, in {format_span(in_s)}"


@dataclass(frozen=True)
class Details:
    """All about a training."""

    record: Record
    """Brought forward to the newest step of the metrics."""
    told: Told | None
    """None if the site does not answer, or the job directory is gone."""
    insight: Insight | None
    """None if no metrics are known."""
    next_command: str
    """Brings what a training that has completed has made; empty if it is here."""
    stored_as: list[str]
    """The versions of stored models that it made, as far as is known here."""

    def plain(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        found = self.record.plain() | {
            "output": told_output(self.record), "next_command": self.next_command,
            "stored_as": self.stored_as, "shown_state": self.record.state_in_words,
            "starts_in_words": starts(self.record, time.time()),
        }  # fmt: skip
        if self.told:
            found |= self.told.plain()
            found["plan"]["created_at"] = unix_seconds(self.told.plan.created_at)
        return found | (self.insight.plain() if self.insight else {})


def describe(session: Session, record: Record, store: RecordStore, tell: Tell) -> Details:
    """Return all about a training.

    If the site does not answer, return what is known locally, marked as stale; if the job directory
    is gone, what is known locally.

    Raises:
        RecordError: files of the job directory are lost, or of another version of dlctl.
    """
    from dlctl.lifecycle import refresh, stale
    from dlctl.lifecycle.told import told_by_site
    from dlctl.outputs.insight import insight, saved_checkpoints
    from dlctl.outputs.metrics import MetricsReader
    from dlctl.series.pace import progress

    meaning = None
    try:
        record = refresh(session, [record], store)[0]
        told, reader = told_by_site(session, record), MetricsReader(record)
        reader.refresh(session.transport)
        saved = saved_checkpoints(session.transport, record)
        meaning = insight(reader.run, record, told.plan, saved)
        record = replace(record, **progress(reader.run, record)._asdict())
    except (TransportError, RecordError) as error:
        if isinstance(error, TransportError):
            tell.warn(error.message)
            record = stale([record], error, store)[0]
        elif not record.is_gone:
            raise
        told, reader = None, MetricsReader(record)
        if reader.seen_at:
            tell.warn(f"the metrics are as of {format_span(time.time() - reader.seen_at)} ago")
            meaning = replace(insight(reader.run, record, None, None), left=None)
    return Details(record, told, meaning, _next_command(record), _stored_as(record))


def _next_command(record: Record) -> str:
    """Return the command that brings what a training that has completed has made; "" if none."""
    from dlctl.record import FETCHED

    is_here = any(map(record.was_fetched, FETCHED))
    is_due = record.state is State.COMPLETED and not (is_here or record.hint or record.is_gone)
    return next_fetch(record) if is_due else ""


def _stored_as(record: Record) -> list[str]:
    """Return the versions of stored models that the training made, as far as is known here."""
    from dlctl.models.record import ModelRecord

    try:
        return ModelRecord().made_from(record.training_id)
    except RecordError:
        return []
