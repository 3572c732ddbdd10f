"""Commands that start, size and end searches: init, start, status, scale, halt, resume, cancel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dlctl.cli import output
from dlctl.cli.common import (
    DRY_RUN,
    JSON,
    SEARCH_ID,
    SITE,
    client,
    opened,
    print_record,
    searched,
)
from dlctl.cli.jobs import end
from dlctl.cli.searching import outcomes, views

if TYPE_CHECKING:
    from dlctl.search.overview import Overview

FILE = typer.Argument(Path("search.yml"), metavar="SEARCH.YML", show_default=True,
                      help="What to search, and how; its folder's files are sent.")  # fmt: skip


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
        sent = begin(session, loaded, client().store, output.Shown())
    record = sent.one()
    output.report(record, as_json, lambda _: output.line(record.training_id))
    sent.finish()
    output.hint(f"dlctl search status {record.training_id}")


def status(search_id: str | None = SEARCH_ID, as_json: bool = JSON) -> None:
    """Show how far a search is, and the best trial so far.

    Example: dlctl search status digits-3k9f
    """
    from dataclasses import asdict

    from dlctl.search.summary import counts
    from dlctl.service import verbs

    with searched(search_id) as (session, record, store):
        record, seen = verbs.status(session, record, store)
    found = counts(seen, record)
    told = record.plain() | asdict(found)
    words = "" if record.state.final else found.left.words
    output.report(told, as_json, lambda _: _print_status(told, seen, words))


def scale(
    search_id: str | None = SEARCH_ID,
    workers: str | None = typer.Option(None, "--workers", metavar="N|LEAST..MOST",
                                       help="How many worker jobs, as in 4, or in 8..40."),
    partition: str | None = typer.Option(
        None, "--partition", help="Of these workers; each partition has a number of its own."
    ),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Say how many workers a search may have; without --workers show it.

    Example: dlctl search scale digits-3k9f --workers 8..40 --partition preemptible
    """
    from dlctl.search.model import parse_span
    from dlctl.service import verbs

    try:
        span = None if workers is None else parse_span(workers)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--workers") from None
    with searched(search_id) as (session, record, store):
        pools = verbs.scale(session, record, store, span, partition)
    rows = [[pool.partition or "-", f"{pool.least}..{pool.most}"] for pool in pools]
    output.report(pools, as_json, lambda _: output.table(["partition", "workers"], rows, "none"))


def halt(search_id: str | None = SEARCH_ID, as_json: bool = JSON) -> None:
    """Stop a search and its workers; `dlctl search resume` goes on.

    Example: dlctl search halt digits-3k9f
    """
    _end("halt", search_id, as_json)


def resume(
    search_id: str | None = SEARCH_ID,
    code: bool = typer.Option(
        False, "--code", help="Go on with your folder, and its requirements, as they are now."
    ),
    as_json: bool = JSON,
) -> None:
    """Go on with a search, with new workers; no trial is done twice.

    With `--code` the space, the strategy and the metric must stay as they were.

    Example: dlctl search resume digits-3k9f
    """
    from dlctl.service import verbs

    with searched(search_id) as (session, record, store):
        known = verbs.resume(session, record, store, output.Shown(), new_code=code)
    output.report(known, as_json, lambda _: print_record(known))


def cancel(
    search_id: str | None = SEARCH_ID, dry_run: bool = DRY_RUN, as_json: bool = JSON
) -> None:
    """End a search and its workers at once.

    Example: dlctl search cancel digits-3k9f
    """
    _end("cancel", search_id, as_json, dry_run)


def _end(verb: str, search_id: str | None, as_json: bool, dry_run: bool = False) -> None:
    from dlctl.service.client import Filter

    mine = client()
    meant = [mine.store.find_search(search_id).training_id]
    end(verb, mine, meant, Filter(), as_json, dry_run=dry_run)


def _print_status(told: dict[str, Any], seen: Overview, left: str) -> None:
    from dlctl.search.summary import best_words, count_words, strategy_words

    is_done = told["state"] == "COMPLETED"
    output.fields({
        "id": told["training_id"], "site": told["site"], "state": told["state"],
        "reason": "" if is_done else told["reason"], "hint": "" if is_done else told["hint"],
        "trials": count_words(seen), "left": left,
        "waits": "\n".join(told["waits"]), "strategy": strategy_words(seen),
        "best": best_words(seen.trials),
    })  # fmt: skip


GROUPS = {"search": (
    "Search for hyper-parameters and architectures.",
    (init, start, status, *views.COMMANDS, *outcomes.COMMANDS, scale, halt, resume, cancel),
)}  # fmt: skip
