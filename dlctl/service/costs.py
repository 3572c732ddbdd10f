"""What trainings take: rehearse one to find out before, report where the hours went."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dlctl.contract import Rehearsed
from dlctl.data.checks import refuse_wrong_stores
from dlctl.errors import DlctlError
from dlctl.lifecycle import delete, submit
from dlctl.lifecycle.accounts import accounts
from dlctl.models.use import build
from dlctl.outputs.ledger import Ledger, Prices, ledger
from dlctl.outputs.rehearsal import read_rehearsed
from dlctl.plan.rehearsal import Forecast, forecast, rehearsal_plan
from dlctl.plan.render import render
from dlctl.service.follow import follow
from dlctl.service.submit import tell_plan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dlctl.contract import Plan
    from dlctl.errors import DlctlError
    from dlctl.lifecycle import Session
    from dlctl.logs.reader import LogPiece
    from dlctl.manifest.overrides import Overrides
    from dlctl.record import Record, RecordStore
    from dlctl.service.client import Client
    from dlctl.tell import Tell


_STAGE = b"rehearsal, stage"
"""In the supervisor's lines about what follows."""


@dataclass(frozen=True)
class Rehearsal:
    """What a rehearsal measured, and what follows from it."""

    training_id: str
    rehearsed: Rehearsed
    forecast: Forecast | None
    memory_asked_bytes: int | None


@dataclass(frozen=True)
class Begun:
    """A rehearsal that was submitted."""

    record: Record
    whole: Plan
    """Of the training that it rehearses."""
    plan: Plan


def begin(
    session: Session, store: RecordStore, manifest: Path, overrides: Overrides, steps: int,
    limit_s: int, tell: Tell,
) -> Begun:  # fmt: skip
    """Submit a rehearsal.

    Raises:
        DlctlError: it was not submitted, or the answer was lost.
    """
    request = build(session, manifest, overrides)
    tell_plan(request.plan, manifest, None, tell)
    plan = rehearsal_plan(request.plan, steps, limit_s)
    rehearsal = replace(request, plan=plan, script=render(plan))
    refuse_wrong_stores(rehearsal, tell.note)
    record = submit(session, rehearsal, store, tell)
    tell.note(f"{record.training_id}: a rehearsal, in four attempts of one job")
    return Begun(record, request.plan, plan)


def finish(session: Session, store: RecordStore, begun: Begun, tell: Tell) -> Rehearsal:
    """Wait for the end of a rehearsal, and return what it has measured.

    Raises:
        TrainingFailed: it ended before all its stages.
    """

    def tell_stages(pieces: Iterator[LogPiece]) -> None:
        for line in (line for piece in pieces for line in piece.content.split(b"\n")):
            if _STAGE in line:
                tell.note(line.decode(errors="replace").strip())

    ended = follow(session, begun.record, store, tell, tell_stages)
    found = read_rehearsed(session.transport, ended)
    return Rehearsal(begun.record.training_id, found, forecast(begun.whole, found),
                     begun.plan.resources.memory_bytes_per_learner)  # fmt: skip


def remove(session: Session, store: RecordStore, begun: Begun, tell: Tell) -> None:
    """Remove a rehearsal; only warn if that fails: what was asked is known."""
    try:
        delete(session, begun.record, store)
    except DlctlError as error:
        tell.warn(f"the rehearsal's files are still there: {error.message}")


def report(mine: Client, records: Sequence[Record]) -> list[Ledger]:
    """Return the ledger of each training.

    Raises:
        DlctlError: a site does not answer.
    """

    def of_site(session: Session, some: list[Record], _: RecordStore) -> list[Ledger | DlctlError]:
        price = session.site.price
        prices = Prices(price.node_hour, price.gpu_hour, price.currency) if price else None
        books = accounts(session, some)
        return [ledger(name, attempts, prices, time.time()) for name, attempts in books.items()]

    done, failures = mine.at_sites(records, of_site)
    if failures:
        raise failures[0]
    found = {each.training_id: each for each in done}
    return [found[record.training_id] for record in records]
