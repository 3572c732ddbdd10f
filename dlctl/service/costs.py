"""Find out the cost of trainings: rehearse one before, report where the hours went."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.contract import Rehearsed
from dlctl.errors import DlctlError, Misused, TrainingFailed
from dlctl.files.small_files import read_files
from dlctl.lifecycle import delete, refresh, submit
from dlctl.lifecycle.accounts import accounts
from dlctl.models.use import build
from dlctl.outputs.ledger import Ledger, Prices, Sum, ledger, summed
from dlctl.plan.rehearsal import Forecast, forecast, rehearsal_plan
from dlctl.plan.render import render
from dlctl.series.utilisation import use_of
from dlctl.service.describe import read_runs
from dlctl.service.fetching import follow
from dlctl.service.submit import tell_plan
from dlctl.store_checks import refuse_wrong_stores
from dlctl.units import natural

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
    """The measurements of a rehearsal, and their consequences."""

    training_id: str
    rehearsed: Rehearsed
    forecast: Forecast | None
    memory_asked_bytes: int | None


def rehearse(
    session: Session, store: RecordStore, manifest: Path, overrides: Overrides, steps: int,
    limit_s: int, tell: Tell, *, keep: bool = False,
) -> Rehearsal:  # fmt: skip
    """Rehearse a training, wait for the end, and return what was measured.

    Args:
        keep: Keep the job directory; one of a training that doesn't restart bit for bit stays.

    Raises:
        DlctlError: it was not submitted, or the answer was lost.
        KeyboardInterrupt: with the id of the rehearsal, if it goes on.
        TrainingFailed: it ended before all its stages.
    """
    request = build(session, manifest, overrides)
    tell_plan(request.plan, manifest, None, tell)
    plan = rehearsal_plan(request.plan, steps, limit_s)
    rehearsal = replace(request, plan=plan, script=render(plan))
    refuse_wrong_stores(session, rehearsal, tell)
    record = submit(session, rehearsal, store, tell)
    tell.note(f"{record.training_id}: a rehearsal, in four attempts of one job")

    def tell_stages(pieces: Iterator[LogPiece]) -> None:
        for line in (line for piece in pieces for line in piece.content.split(b"\n")):
            if _STAGE in line:
                tell.note(line.decode(errors="replace").strip())

    try:
        record = follow(session, record, store, tell, tell_stages)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(record.training_id) from None
    found = _read_rehearsed(session, record)
    if found.equal and not keep:
        try:
            delete(session, record, store)
        except DlctlError as error:  # what was asked is known
            tell.warn(f"the rehearsal's files are still there: {error.message}")
    return Rehearsal(record.training_id, found, forecast(request.plan, found),
                     plan.resources.memory_bytes_per_learner)  # fmt: skip


def _read_rehearsed(session: Session, record: Record) -> Rehearsed:
    path = f"{record.job_dir}/{contract.REHEARSAL}"
    content = read_files(session.transport, [path])[path]
    if content is None:
        raise TrainingFailed(
            f"the rehearsal {record.training_id} ended {record.state} in attempt "
            f"{record.attempt} of 4, before its last stage: {record.reason or 'see its log'}",
            hint=f"dlctl logs {record.training_id}",
        )
    return contract.from_json(Rehearsed, content)


def report(mine: Client, records: Sequence[Record]) -> list[tuple[Record, Ledger]]:
    """Return each training as its site knows it now, with its ledger.

    Raises:
        DlctlError: a site does not answer.
    """

    def of_site(
        session: Session, some: list[Record], store: RecordStore
    ) -> list[tuple[Record, Ledger] | DlctlError]:
        price = session.site.price
        prices = Prices(price.node_hour, price.gpu_hour, price.currency) if price else None
        known, books = refresh(session, some, store), accounts(session, some)
        now, runs = time.time(), read_runs(session, known)
        return [
            (record, ledger(record.training_id, books[record.training_id], prices,
                            record.site_time(now), use_of(runs[record.training_id])))
            for record in known
        ]  # fmt: skip

    done, failures = mine.at_sites(records, of_site)
    if failures:
        raise failures[0]
    found = {record.training_id: (record, book) for record, book in done}
    return [found[record.training_id] for record in records]


GROUPS: Mapping[str, Callable[[Record], Sequence[str]]] = {
    "tag": lambda record: record.tags or ["-"],
    "state": lambda record: [str(record.state)],
    "site": lambda record: [record.site],
    "name": lambda record: [record.name],
}
"""The ways to group trainings, and the groups of one."""


def sums(found: Sequence[tuple[Record, Ledger]], by: str) -> list[Sum]:
    """Return the sums of each group of trainings, of which one may be in several.

    Args:
        by: One of `GROUPS`.

    Raises:
        Misused: it is none.
    """
    if by not in GROUPS:
        raise Misused(f"{by!r} is no way to group: there are {', '.join(GROUPS)}", option="--by")
    groups: dict[str, list[Ledger]] = {}
    for record, book in found:
        for key in GROUPS[by](record):
            groups.setdefault(key, []).append(book)
    return [summed(key, groups[key]) for key in sorted(groups, key=natural)]
