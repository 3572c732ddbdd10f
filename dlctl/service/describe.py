"""What is known of one training: record, plan, learners, verdict, and what they mean."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from dlctl.contract import Plan, State, from_plain
from dlctl.contract.ground.amounts import format_span
from dlctl.errors import RecordError, TransportError
from dlctl.service.made import next_fetch, told_output

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.record import Record, RecordStore
    from dlctl.tell import Tell

UNKNOWN_IF_0 = ("seen_at", "started_at", "ended_at", "epochs", "starts_at", "ends_at")
"""Fields of a record that are null in JSON if nobody knows them."""


def plain(record: Record) -> dict[str, Any]:
    """Return a record as JSON has it: objects as objects, and times in Unix seconds."""
    known = asdict(record)
    try:
        overrides = json.loads(record.overrides)
    except ValueError:
        overrides = None
    return (
        known
        | {name: known[name] or None for name in UNKNOWN_IF_0}
        | {
            "state": str(record.state), "created_at": unix_seconds(record.created_at),
            "overrides": overrides,
        }
    )  # fmt: skip


def unix_seconds(iso_time: str) -> float | None:
    """Return the time that a record or plan holds as ISO 8601; None if it holds none."""
    try:
        return datetime.fromisoformat(iso_time).timestamp()
    except ValueError:
        return None


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


def describe(session: Session, record: Record, store: RecordStore, tell: Tell) -> dict[str, Any]:
    """Return all about a training, as JSON has it.

    If the site does not answer, return what is known locally, marked as stale; if the job directory
    is gone, what is known locally.

    Raises:
        RecordError: files of the job directory are lost, or of another version of dlctl.
    """
    from dlctl.lifecycle import refresh, stale

    try:
        record = refresh(session, [record], store)[0]
        more = told_by_site(session, record)
        more |= _meaning(session, record, from_plain(Plan, more["plan"]))
        more["plan"] |= {"created_at": unix_seconds(more["plan"]["created_at"])}
    except TransportError as error:
        tell.warn(error.message)
        record, more = stale([record], error, store)[0], _cached_meaning(record, tell)
    except RecordError:
        if not record.is_gone:
            raise
        more = _cached_meaning(record, tell)
    return plain(record) | {
        "output": told_output(record), "next_command": _next_command(record),
        "stored_as": _stored_as(record), "shown_state": record.state_in_words,
        "starts_in_words": starts(record, time.time()), **more,
    }  # fmt: skip


def told_by_site(session: Session, record: Record) -> dict[str, Any]:
    """Return plan, attempts, learners, verdict and orders, as JSON has them.

    Raises:
        RecordError: files of the job directory are lost, or of another version of dlctl.
        TransportError
    """
    from dlctl.lifecycle import details
    from dlctl.lifecycle.orders import given_orders

    orders = given_orders(session, record)
    return {**details(session, record), "orders": [asdict(o) | {"text": str(o)} for o in orders]}


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


def _meaning(session: Session, record: Record, plan: Plan) -> dict[str, Any]:
    """Return what the metrics mean, and how far they are."""
    from dlctl.outputs.insight import insight, saved_checkpoints
    from dlctl.outputs.metrics import MetricsReader
    from dlctl.series.pace import progress

    reader = MetricsReader(record)
    reader.refresh(session.transport)
    saved = saved_checkpoints(session.transport, record)
    told = insight(reader.run, record, plan, saved)
    return told.plain() | progress(reader.run, record)._asdict()


def _cached_meaning(record: Record, tell: Tell) -> dict[str, Any]:
    """Return what the metrics mean that are kept on this machine; the site does not answer."""
    from dlctl.outputs.insight import insight
    from dlctl.outputs.metrics import MetricsReader

    reader = MetricsReader(record)
    if not reader.seen_at:
        return {}
    tell.warn(f"the metrics are as of {format_span(time.time() - reader.seen_at)} ago")
    return insight(reader.run, record, None, None).plain() | {"time_left_s": None}
