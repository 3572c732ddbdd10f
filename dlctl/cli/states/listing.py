"""`dlctl list`: all trainings in a table, with what the sites of the open ones say."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import typer

from dlctl.cli import output
from dlctl.cli.choosing import NAME, NOTHING, STATE, TAG
from dlctl.cli.common import JSON, client, complete_sites
from dlctl.service.describe import plain

if TYPE_CHECKING:
    from dlctl.record import Record


def list_(
    offline: bool = typer.Option(False, "--offline", help="Ask no site; show the local record."),
    site: str | None = typer.Option(None, "--site", "-s", help="Only trainings on this site.",
                                    autocompletion=complete_sites),
    name: str | None = NAME,
    state: list[str] = STATE,
    tag: list[str] = TAG,
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
    from dlctl.service.choose import Filter

    mine, wanted = client(), Filter(name, state, tag)
    if watch and offline:
        raise typer.BadParameter("--watch asks the sites, and --offline asks none")
    if site and not any(record.site == site for record in mine.store.all()):
        from dlctl.sites.files import find_site

        find_site(site)  # refuses a name that is no site's
    named = Filter(name, None, tag)

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
    shown = [plain(r) for r in records] if as_json else []
    output.report(shown, as_json, lambda _: _print(records, empty, fresh=not offline))


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
