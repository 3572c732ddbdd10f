"""`dlctl list`: all trainings in a table, with what the sites of the open ones say."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import typer

from dlctl.cli import output
from dlctl.cli.choosing import NAME, NOTHING, STATE, TAG, fitting
from dlctl.cli.common import JSON, ago, ask_all, open_record, plain, span
from dlctl.contract import State

if TYPE_CHECKING:
    from dlctl.record import Record, RecordStore

_COLUMNS = ["training", "site", "state", "elapsed", "progress", "loss"]


def list_(
    offline: bool = typer.Option(False, "--offline", help="Ask no site; show the local record."),
    site: str | None = typer.Option(None, "--site", "-s", help="Only trainings on this site."),
    name: str | None = NAME,
    state: list[str] = STATE,
    tag: list[str] = TAG,
    as_json: bool = JSON,
) -> None:
    """List your trainings, newest first; asks the sites of trainings that have not ended.

    A state with a time, such as `TRAINING (3 min ago)`, is the last known one.

    Example: dlctl list --site mycluster
    """
    store = open_record()
    wanted = fitting(name, state, tag)
    records = [r for r in reversed(store.all()) if site in (None, r.site)]
    if site and not records:
        from dlctl.sites.files import find_site

        find_site(site)  # refuses a name that is no site's
    still_open = [r for r in records if not r.state.final or r.notice_tries]
    if still_open and not offline:
        known = ask_sites(still_open, store)
        records = [known.get(r.training_id, r) for r in records]
    records = [r for r in records if wanted.fits(r)]
    rows = [_row(r, fresh=not offline and r.stale_since is None) for r in records]
    output.report([plain(r) for r in records], as_json, lambda _: output.table(
        _COLUMNS, rows, NOTHING if wanted else
        "no trainings yet: `dlctl init my-training` creates one, `dlctl adopt SITE` finds those "
        "that a site has"))  # fmt: skip


def ask_sites(records: list[Record], store: RecordStore) -> dict[str, Record]:
    """Return the records by id, as their sites know them now; stale if their site is silent.

    Asks nothing at the terminal: a site that wants a password counts as one that does not answer.
    """
    from dlctl.errors import DlctlError, TransportError
    from dlctl.lifecycle import refresh, stale

    by_site: dict[str, list[Record]] = {}
    for record in records:
        by_site.setdefault(record.site, []).append(record)
    known: dict[str, Record] = {}
    for name, answer in ask_all(by_site, lambda s: refresh(s, by_site[s.site.name], store)):
        told, mine = answer, by_site[name]
        if isinstance(told, DlctlError):
            output.warn(f"{name}: {told.message}")
            told = stale(mine, told, store) if isinstance(told, TransportError) else mine
        known |= {record.training_id: record for record in told}
    return known


def _row(record: Record, fresh: bool) -> list[str]:
    fresh = fresh or record.state.final
    when = ago(time.time() - record.seen_at) if record.seen_at else "never seen"
    state = str(record.state) if fresh else f"{record.state} ({when})"
    loss = "-" if record.loss is None else f"{record.loss:.4g}"
    return [record.training_id, record.site, state, _elapsed(record, fresh), progress(record), loss]


def _elapsed(record: Record, fresh: bool) -> str:
    until = record.ended_at if record.state.final else time.time() if fresh else record.seen_at
    return span(until - record.started_at) if record.started_at and until else "-"


def progress(record: Record) -> str:
    """Return `epoch 3/8`, or `40 %` or `step 70` of a program that counts no epochs.

    While data is loaded or results are stored, return how far that is.
    """
    if record.moved is not None and record.state in (State.DOWNLOADING, State.STORING):
        return f"{100 * record.moved:.0f} %"
    if record.epoch is not None:
        return f"epoch {record.epoch}" + (f"/{record.epochs}" if record.epochs else "")
    if record.done is not None:
        return f"{100 * record.done:.0f} %"
    return "-" if record.step is None else f"step {record.step}"
