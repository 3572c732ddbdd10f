"""Store the results of a training that has ended: again, or where its nodes could not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl.contract.stores import STORE
from dlctl.errors import RecordError
from dlctl.lifecycle import read_plan, refresh
from dlctl.lifecycle.staging.stores import save
from dlctl.lifecycle.submit import renew_credentials
from dlctl.request.attempts import read_newest

if TYPE_CHECKING:
    from dlctl.lifecycle.session import Session
    from dlctl.record import Record, RecordStore


def store_again(
    session: Session, record: Record, store: RecordStore,
    on_line: Callable[[str], None] | None = None,
) -> list[str]:  # fmt: skip
    """Have the login node, or this machine, store a training's results; return a line a store.

    Raises:
        RecordError: the training has not ended, or no data store takes its results.
        ResultsError: they can't be stored.
        TransportError
    """
    record = refresh(session, [record], store)[0]
    if not record.state.final:
        raise RecordError(
            f"{record.training_id} is {record.state}: its results are stored when it has ended",
            hint=f"dlctl show {record.training_id}",
        )
    plan = read_plan(session, record)
    if not any(STORE in each.scripts for each in plan.data_stores):
        raise RecordError(
            f"no data store of {record.training_id} takes results by a script",
            hint=f"dlctl fetch {record.training_id}",
        )
    manifest = read_newest(session.transport, record).manifest
    renew_credentials(session, plan, manifest, Path(record.folder))
    return save(session, plan, record.attempt, on_line)
