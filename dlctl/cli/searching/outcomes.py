"""Commands about what a search has found: search best, trials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from dlctl.cli import output
from dlctl.cli.common import ID, JSON, training

if TYPE_CHECKING:
    from dlctl.search.trials import TrialRow, Trials

_SHOWN = 20


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


COMMANDS = (best, trials)


def _print_best(row: TrialRow, found: Trials) -> None:
    from dlctl.search.summary import metric_words

    output.fields({"trial": row.number, found.spec.metric: metric_words(row)} | row.point)


def _print_trials(rows: Sequence[TrialRow], found: Trials) -> None:
    from dlctl.search.summary import metric_words, point_words, took_words

    table = [
        [str(row.number), row.outcome_words, metric_words(row),
         took_words(row.seconds) if row.outcome else "-", row.worker or "-",
         row.error or point_words(row.point)]
        for row in rows
    ]  # fmt: skip
    output.table(["trial", "outcome", found.spec.metric, "took", "worker", "point"], table,
                 "no trial so far")  # fmt: skip
