"""`dlctl watch` and `dlctl dashboard`: trainings that stay new, in terminal or browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dlctl.cli import output
from dlctl.cli.common import IDS, client, complete_ids, complete_sites, open_record, writing

if TYPE_CHECKING:
    from dlctl.dashboard.live import LiveFeed


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(watch)
    app.command()(dashboard)


def watch(
    training_ids: list[str] = IDS,
    once: bool = typer.Option(False, "--once", help="Print one picture and end."),
) -> None:  # fmt: skip
    """Watch trainings: curves, the six answers, learners, the log; a pipe gets plain text.

    Example: dlctl watch digits-3k9f
    """
    from dlctl.terminal.watch import Watched, watch_in_pipe, watch_on_terminal

    mine = client()
    watched = Watched(mine.store, mine.open, mine.store.find_all(training_ids or []))
    with closing(watched.live):
        if output.has_whole_screen() and not once:
            watch_on_terminal(watched)
        else:
            columns = shutil.get_terminal_size((80, 24)).columns
            watch_in_pipe(watched, output.raw, columns, follow=not once)


def dashboard(
    training_ids: list[str] = typer.Argument(
        None, metavar="ID", autocompletion=complete_ids, show_default=False,
        help="Training ids; all trainings by default.",
    ),
    site: str | None = typer.Option(
        None, "--site", "-s", autocompletion=complete_sites, help="Only trainings on this site."
    ),
    port: int = typer.Option(0, "--port", min=0, max=65535, help="Any free port by default."),
    export: Path | None = typer.Option(
        None, "--export", metavar="FILE", help="Write one HTML file that needs no server, and end."
    ),
    no_browser: bool = typer.Option(False, "--no-browser", help="Only print the address."),
) -> None:  # fmt: skip
    """Show trainings in the browser: curves, utilisation, logs, a comparison.

    The page is served on this machine only, until Ctrl-C.

    Example: dlctl dashboard digits-3k9f
    """
    with _feed(training_ids or [], site) as (feed, ids):
        if export is not None:
            return _export(feed, ids, export)
        _serve(feed, ids, port, open_browser=not no_browser)
    return output.note("the dashboard has ended; the trainings continue")


@contextmanager
def _feed(wanted: list[str], site: str | None) -> Iterator[tuple[LiveFeed, list[str]]]:
    """Yield the trainings, and the ids that were asked for."""
    from dlctl.dashboard.live import LiveFeed
    from dlctl.sites.files import find_site

    mine = client()
    ids = [record.training_id for record in mine.store.find_all(wanted)] if wanted else []
    if site:
        find_site(site)  # refuses a name that is no site's
    with closing(LiveFeed(mine.store, mine.open, ids, site)) as feed:
        yield feed, ids


def _export(feed: LiveFeed, ids: list[str], path: Path) -> None:
    from dlctl.dashboard.report import report

    text = report(feed, ids)
    with writing(path):
        path.write_text(text, encoding="utf-8")
    output.line(str(path))


def _serve(feed: LiveFeed, ids: list[str], port: int, *, open_browser: bool) -> None:
    from dlctl.dashboard.serve import serve

    page = "/"
    if len(ids) == 1:
        kind = "search" if open_record().find(ids[0]).is_search else "training"
        page = f"/{kind}/{ids[0]}"
    serve(feed, port, page, open_browser=open_browser, tell=lambda url: output.raw(f"{url}\n"),
          warn=output.warn)  # fmt: skip
