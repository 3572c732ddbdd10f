"""Commands that only read how trainings are: list, status, show."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from dlctl.cli import output
from dlctl.cli.common import (
    ID,
    IDS,
    JSON,
    NOTHING,
    client,
    complete_sites,
    filtered,
    print_record,
    raise_lasting,
    training,
    whole,
)
from dlctl.cli.manners import paged

if TYPE_CHECKING:
    from dlctl.record import Record
    from dlctl.service.client import Filter


@filtered
def list_(
    offline: bool = typer.Option(False, "--offline", help="Ask no site; show the local record."),
    site: str | None = typer.Option(None, "--site", "-s", help="Only trainings on this site.",
                                    autocompletion=complete_sites),
    *, wanted: Filter,
    watch: bool = typer.Option(
        False, "--watch", "-w",
        help="Keep the table new until q or Ctrl-C; a pipe gets a line for each change, until all "
        "have ended.",
    ),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """List your trainings, newest first; asks the sites of trainings that have not ended.

    A state with a time, such as `TRAINING (3 min ago)`, is the last known one.
    A wide terminal shows more columns.

    Example: dlctl list --watch --site mycluster
    """
    mine = client()
    if watch and offline:
        raise typer.BadParameter("--watch asks the sites, and --offline asks none")
    if site and not any(record.site == site for record in mine.store.all()):
        from dlctl.sites.files import find_site

        find_site(site)  # refuses a name that is no site's
    named = replace(wanted, states=())

    def is_meant(record: Record) -> bool:
        """Return whether a training is meant, whatever its state, which only its site knows."""
        return site in (None, record.site) and named.fits(record)

    if watch:
        from dlctl.cli.states.live import watch_list

        watch_list(mine, is_meant, wanted.fits, as_json=as_json)
        return
    records = [record for record in reversed(mine.store.all()) if is_meant(record)]
    still_open = [r for r in records if not r.state.final or r.notice_tries]
    if still_open and not offline:
        asked, _ = mine.refreshed(still_open, at_once=True)
        known = {each.training_id: each for each in asked}
        records = [known.get(r.training_id, r) for r in records]
    records = [r for r in records if wanted.fits(r)]
    none = (
        "no trainings yet: `dlctl init my-training` creates one, `dlctl adopt SITE` finds those of "
        "a site"
    )
    empty = NOTHING if wanted else none
    output.report(records, as_json, lambda _: _print(records, empty, fresh=not offline))


def _print(records: list[Record], empty: str, *, fresh: bool) -> None:
    """Print a table as wide as the terminal; a pipe gets all columns, and whole words."""
    import shutil
    import sys

    from dlctl.terminal.trainings import COLUMNS, cells, table

    now = time.time()
    if not records or not sys.stdout.isatty():
        rows = [[*cells(record, now, fresh=fresh).values()] for record in records]
        return output.table(COLUMNS, rows, empty)
    columns = shutil.get_terminal_size().columns
    lines = table(records, columns, now, fresh=fresh)
    return output.raw("".join(f"{line.render(output.has_colours())}\n" for line in lines))


@filtered
def status(training_ids: list[str] = IDS, *, wanted: Filter, as_json: bool = JSON) -> None:
    """Ask the sites for the state of trainings.

    Example: dlctl status digits-3k9f
    """
    from dlctl.service.client import chosen

    mine = client()
    known, problems = mine.refreshed(chosen(mine.store, training_ids, wanted))
    many = [[r.training_id, r.state_in_words, r.reason] for r in known]
    output.report(whole(known), as_json,
                  lambda _: print_record(known[0]) if len(known) == 1 else
                  output.table(["training", "state", "reason"], many, NOTHING))  # fmt: skip
    raise_lasting(problems)


def show(
    training_id: str | None = ID,
    script: bool = typer.Option(False, "--script", help="Print the batch script that was sent."),
    everything: bool = typer.Option(
        False, "--all", "-a", help="Print all that is known: plan, learners, metrics, servers."
    ),
    as_json: bool = JSON,
) -> None:
    """Show the story of one training on one screen: state, why, progress, what was saved.

    `--all` prints everything: the plan, a row for each learner, their metrics.

    Example: dlctl show digits-3k9f --all
    """
    from dlctl.cli.states.show import print_details, print_story
    from dlctl.service.describe import describe

    with training(training_id) as (session, record, store):
        if script:
            from dlctl.request.attempts import read_newest

            text = read_newest(session.transport, record).script.decode()
            with paged(not as_json):
                return output.report({"script": text}, as_json, lambda _: output.document(text))
        details = describe(session, record, store, output.Shown())
    with paged(everything and not as_json):
        return output.report(details, as_json, print_details if everything else print_story)
