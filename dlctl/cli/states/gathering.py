"""Gather what is known of one training: record, plan, learners, verdict, and what they mean."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dlctl.cli import output
from dlctl.cli.common import ago, plain, unix_seconds
from dlctl.record import FETCHED
from dlctl.service.made import next_fetch, told_output

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.record import Record, RecordStore


def gather(session: Session, record: Record, store: RecordStore) -> dict[str, Any]:
    """Return record, plan, learners and verdict, as `--json` prints them.

    If the site does not answer, return what is known locally, marked as stale; if the job directory
    is gone, what is known locally.

    Raises:
        RecordError: files of the job directory are lost, or of another version of dlctl.
    """
    from dlctl.errors import RecordError, TransportError
    from dlctl.lifecycle import details, refresh, stale
    from dlctl.lifecycle.orders import given_orders
    from dlctl.terminal.trainings import starts

    try:
        record = refresh(session, [record], store)[0]
        more: dict[str, Any] = details(session, record)
        more["orders"] = [asdict(o) | {"text": str(o)} for o in given_orders(session, record)]
        more |= _meaning(session, record, more.get("plan"))
    except TransportError as error:
        output.warn(error.message)
        record, more = stale([record], error, store)[0], _cached_meaning(record)
    except RecordError:
        if not record.is_gone:
            raise
        more = _cached_meaning(record)
    if plan := more.get("plan"):
        more = {**more, "plan": {**plan, "created_at": unix_seconds(plan["created_at"])}}
    return (
        plain(record)
        | {"output": told_output(record), "next_command": _next_command(record)}
        | {"stored_as": _stored_as(record)}
        | {"shown_state": record.state_in_words, "starts_in_words": starts(record, time.time())}
        | more
    )


def _next_command(record: Record) -> str:
    """Return the command that brings what a training that has completed has made; "" if none."""
    from dlctl.contract import State

    is_here = any(map(record.was_fetched, FETCHED))
    is_due = record.state is State.COMPLETED and not (is_here or record.hint or record.is_gone)
    return next_fetch(record) if is_due else ""


def _stored_as(record: Record) -> list[str]:
    """Return the versions of stored models that the training made, as far as is known here."""
    from dlctl.errors import RecordError
    from dlctl.models.record import ModelRecord

    try:
        return ModelRecord().made_from(record.training_id)
    except RecordError:
        return []


def _meaning(session: Session, record: Record, plan: dict[str, Any] | None) -> dict[str, Any]:
    """Return what the metrics mean, and how far they are."""
    from dlctl.contract import Plan, from_json
    from dlctl.outputs.insight import insight, saved_checkpoints
    from dlctl.outputs.metrics import MetricsReader
    from dlctl.series.pace import Progress, progress

    reader = MetricsReader(record)
    reader.refresh(session.transport)
    saved = saved_checkpoints(session.transport, record)
    known = from_json(Plan, json.dumps(plan, default=str)) if plan else None
    told = Progress(record.epoch, record.step, record.done)
    return insight(reader.run, record, known, saved).plain() | progress(reader.run, told)._asdict()


def _cached_meaning(record: Record) -> dict[str, Any]:
    """Return what the metrics mean that are kept on this machine; the site does not answer."""
    from dlctl.outputs.insight import insight
    from dlctl.outputs.metrics import MetricsReader

    reader = MetricsReader(record)
    if not reader.seen_at:
        return {}
    output.warn(f"the metrics are as of {ago(time.time() - reader.seen_at)}")
    meaning = insight(reader.run, record, None, []).plain()
    answers = [a for a in meaning["answers"] if a["key"] != "checkpoint" or a["evidence"]]
    return meaning | {"answers": answers, "time_left_s": None}
