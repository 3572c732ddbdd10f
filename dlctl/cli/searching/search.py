"""Commands about searches: search init, start, status, best, trials, scale, halt and others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dlctl.cli import output
from dlctl.cli.common import ID, JSON, SITE, open_record, opened, plain, print_record, training
from dlctl.units import format_span

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.record import Record, RecordStore
    from dlctl.search.overview import Overview
    from dlctl.search.trials import TrialRow, Trials

app = typer.Typer(no_args_is_help=True, help="Search for hyper-parameters and architectures.")
FILE = typer.Argument(Path("search.yml"), metavar="SEARCH.YML", show_default=True,
                      help="What to search, and how; its folder's files are sent.")  # fmt: skip
_SHOWN = 20
_WIDEST = 60
_BRIEF_S = 60.0


def register(parent: typer.Typer) -> None:
    """Add the group."""
    for command in (init, start, status, best, trials, scale, halt, resume, cancel):
        app.command()(command)
    parent.add_typer(app, name="search")


def init(
    folder: Path = typer.Argument(Path(), metavar="FOLDER", help="Where to write them."),
) -> None:
    """Write search.yml and the program of a trial.

    Example: dlctl search init my-search
    """
    from dlctl.request.scaffold import scaffold_search

    for path in scaffold_search(folder):
        output.line(str(path))
    output.hint(f"dlctl search start {folder / 'search.yml'}")


def start(path: Path = FILE, site: str = SITE, as_json: bool = JSON) -> None:
    """Start a search: its hub, and its first workers. Prints its id.

    Example: dlctl search start search.yml --site mycluster
    """
    from dlctl.search.load import load_search
    from dlctl.search.start import start as begin

    loaded = load_search(path)
    with opened(site) as session:
        record = begin(session, loaded, open_record(), output.note)
    output.report(plain(record), as_json, lambda v: output.line(v["training_id"]))
    output.hint(f"dlctl search status {record.training_id}")


def status(search_id: str | None = ID, as_json: bool = JSON) -> None:
    """Show how far a search is, and the best trial so far.

    Example: dlctl search status digits-3k9f
    """
    from dlctl.lifecycle import refresh
    from dlctl.search.overview import read_overview
    from dlctl.search.waits import why_trials_wait

    with training(search_id) as (session, record, store):
        record = refresh(session, [record], store)[0]
        seen = read_overview(session, record)
    waits = why_trials_wait(seen, record)
    told = plain(record) | counts(seen) | {"waits": waits}
    output.report(told, as_json, lambda _: _print_status(told, seen.trials))


def best(search_id: str | None = ID, as_json: bool = JSON) -> None:
    """Show the best trial so far.

    Example: dlctl search best digits-3k9f --json
    """
    from dlctl.errors import ResultsError
    from dlctl.search.overview import read_overview

    with training(search_id) as (session, record, _):
        found = read_overview(session, record).trials
    if (row := found.best) is None:
        raise ResultsError(f"{record.training_id}: no trial has ended well so far",
                           hint=f"dlctl search trials {record.training_id}")  # fmt: skip
    output.report(row, as_json, lambda _: _print_best(row, found))


def trials(
    search_id: str | None = ID,
    all_: bool = typer.Option(False, "--all", help="All of them, and not only the newest."),
    as_json: bool = JSON,
) -> None:
    """List the trials of a search: what was tried, and what came of it.

    Example: dlctl search trials digits-3k9f --json
    """
    from dlctl.search.overview import read_overview

    with training(search_id) as (session, record, _):
        found = read_overview(session, record).trials
    rows = found.rows if all_ or as_json else found.rows[-_SHOWN:]
    output.report(rows, as_json, lambda _: _print_trials(rows, found))


def scale(
    search_id: str | None = ID,
    workers: int = typer.Option(1, "--workers", min=1, help="How many more worker jobs."),
    as_json: bool = JSON,
) -> None:
    """Add workers to a search.

    Example: dlctl search scale digits-3k9f --workers 4
    """
    from dlctl.search.load import load_search
    from dlctl.search.start import file_of
    from dlctl.search.workers import add_workers

    with training(search_id) as (session, record, _):
        group = add_workers(session, load_search(file_of(record)), record, workers)
    output.report(group, as_json, lambda _: output.line(f"{group.name}: {workers} workers"))


def halt(search_id: str | None = ID, as_json: bool = JSON) -> None:
    """Stop a search and its workers; `dlctl search resume` goes on.

    Example: dlctl search halt digits-3k9f
    """
    from dlctl.lifecycle import halt as ask

    _end(search_id, ask, as_json)


def resume(search_id: str | None = ID, as_json: bool = JSON) -> None:
    """Go on with a search, with new workers; no trial is done twice.

    Example: dlctl search resume digits-3k9f
    """
    from dlctl.search.start import resume as go_on

    with training(search_id) as (session, record, store):
        known = go_on(session, record, store, output.note)
    output.report(plain(known), as_json, lambda _: print_record(known))


def cancel(search_id: str | None = ID, as_json: bool = JSON) -> None:
    """End a search and its workers for good.

    Example: dlctl search cancel digits-3k9f
    """
    from dlctl.lifecycle import cancel as end

    _end(search_id, end, as_json)


def _end(
    search_id: str | None, end: Callable[[Session, Record, RecordStore], Record], as_json: bool
) -> None:
    """End the hub as asked, and then its workers."""
    from dlctl.search.workers import end_workers

    with training(search_id) as (session, record, store):
        known = end(session, record, store)
        end_workers(session, record)
    output.report(plain(known), as_json, lambda _: print_record(known))


def counts(seen: Overview) -> dict[str, Any]:
    """Return how many trials there are, by their states, and the best one."""
    found = seen.trials
    return {
        "trials": len(found.rows), "ended": len(found.order), "running": seen.running,
        "failed": sum(row.failed for row in found.rows), "budget": found.spec.budget.trials,
        "best": found.best,
    }  # fmt: skip


def _print_status(told: dict[str, Any], found: Trials) -> None:
    of = f" of {told['budget']}" if told["budget"] else ""
    outstanding = told["trials"] - told["ended"]
    running = "" if told["running"] is None else f" ({told['running']} of them run)"
    output.fields({
        "id": told["training_id"], "site": told["site"], "state": told["state"],
        "reason": told["reason"],
        "trials": f"{told['ended']}{of} ended, {told['failed']} failed, {outstanding} outstanding"
                  + (running if outstanding else ""),
        "waits": "\n".join(told["waits"]),
        "strategy": found.spec.strategy,
        "best": best_words(found.best, found),
    })  # fmt: skip


def best_words(row: TrialRow | None, found: Trials) -> str:
    """Return the best trial in words."""
    if row is None or row.metric is None:
        return "no trial has ended well so far"
    return f"{found.spec.metric} {row.metric:.6g} (trial {row.number}: {_point(row)})"


def _print_best(row: TrialRow, found: Trials) -> None:
    metric = "-" if row.metric is None else f"{row.metric:.6g}"
    output.fields({"trial": row.number, found.spec.metric: metric} | row.point)


def _print_trials(rows: Sequence[TrialRow], found: Trials) -> None:
    table = [
        [str(row.number), row.outcome_words,
         "-" if row.metric is None else f"{row.metric:.6g}",
         _took(row.seconds) if row.outcome else "-", row.worker or "-",
         row.error or _point(row)]
        for row in rows
    ]  # fmt: skip
    output.table(["trial", "outcome", found.spec.metric, "took", "worker", "point"], table,
                 "no trial so far")  # fmt: skip


def _took(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < _BRIEF_S else format_span(seconds)


def _point(row: TrialRow) -> str:
    words = (f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
             for name, value in row.point.items())  # fmt: skip
    text = " ".join(words)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"
