"""What a person can ask a real training to do from the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dlctl.lifecycle import cancel, halt, resume
from dlctl.lifecycle.orders import Ordered, give_order, parse_settings

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.record import Record, RecordStore

_ANSWER_S = 5.0
"""How long to wait for learners that train."""


def act(
    session: Session, record: Record, store: RecordStore, verb: str, arguments: Mapping[str, Any]
) -> str:
    """Do it, and return a sentence about it.

    Raises:
        DlctlError
    """
    if verb == "halt":
        return _told(halt(session, record, store))
    if verb == "cancel":
        return _told(cancel(session, record, store))
    if verb == "resume":
        return _told(_resume(session, record, store))
    if verb == "checkpoint":
        return _ordered(
            give_order(session, record, store, {}, save=True, wait_s=_ANSWER_S), "a checkpoint"
        )
    values = parse_settings([f"{name}={value}" for name, value in arguments.items()])
    if not values:
        return "Name at least one setting; nothing was changed."
    what = ", ".join(f"{name}={value:g}" for name, value in values.items())
    return _ordered(give_order(session, record, store, values, wait_s=_ANSWER_S), what)


def _resume(session: Session, record: Record, store: RecordStore) -> Record:
    from dlctl.models.use import build_again

    return resume(session, record, store, lambda known: build_again(session, known))


def _told(record: Record) -> str:
    why = f": {record.reason}" if record.reason else ""
    return f"{record.training_id} is {record.state}{why}."


def _ordered(done: Ordered, what: str) -> str:
    if done.answer is None:
        return f"Asked for {what}; no answer yet (order {done.number})."
    if done.answer.problem:
        return f"Refused at step {done.answer.step}: {done.answer.problem}"
    return f"Done at step {done.answer.step}: {what}."
