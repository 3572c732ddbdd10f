"""Commands for metrics: `metrics` lists, `watch` draws, `dashboard` and `serve` serve them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dlctl.cli import output
from dlctl.cli.common import (
    IDS,
    NOTHING,
    client,
    complete_ids,
    complete_sites,
    default_site,
    filtered,
    opened,
    write_text,
    writing,
)

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.outputs.metrics.platform import Platform
    from dlctl.record import Record
    from dlctl.series.merged import Entry
    from dlctl.service.client import Client, Filter


def complete_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of metrics that this machine has seen, for shell completion.

    They are those of the trainings on the command line, or of the latest one of this folder.
    """
    from dlctl.errors import RecordError
    from dlctl.outputs.metrics.files import kept_metrics
    from dlctl.record import RecordStore

    try:
        records = RecordStore().find_all(ctx.params.get("training_ids") or [])
    except RecordError:
        return []
    kept = [known for known in map(kept_metrics, records) if known is not None]
    found = {name for _, entries in kept for entry in entries for name in entry.line.values}
    return sorted(name for name in found if name.startswith(incomplete))


@filtered
def metrics(
    training_ids: list[str] = typer.Argument(
        None, metavar="ID", autocompletion=complete_ids, show_default=False,
        help="Training ids; the latest training of this folder by default. With --platform: sites.",
    ),
    *, wanted: Filter,
    as_json: bool = typer.Option(False, "--json", help="Print each record as a JSON object."),
    as_csv: bool = typer.Option(False, "--csv", help="Print each value as a row of CSV."),
    export: list[str] = typer.Option(
        None, "--export", metavar="FORMAT=PLACE", help="Write them for another tool: "
        "tensorboard=DIR, parquet=FILE, mlflow=DIR (or its tracking address), wandb=DIR.",
    ),
    stay: bool = typer.Option(
        False, "--follow", "-f", help="Stay and print new records (with --json or --csv)."
    ),
    since: int = typer.Option(0, "--since", metavar="STEP", help="Only from this step on."),
    names: str | None = typer.Option(
        None, "--names", metavar="RE", help="Only values with such a name, as in 'loss|accuracy'.",
        autocompletion=complete_names,
    ),
    of_platform: bool = typer.Option(
        False, "--platform", help="Show idle nodes and hours lost, of whole sites."
    ),
) -> None:  # fmt: skip
    """Print what was measured, as a list or a table.

    It covers all attempts, learners and sources.

    Example: dlctl metrics digits-3k9f --names loss --csv
    """
    if stay and export:
        raise typer.BadParameter("--follow prints only: leave --export out")
    if as_json and as_csv:
        raise typer.BadParameter("--json and --csv exclude each other: both print the list")
    if stay and not (as_json or as_csv):
        watch = " ".join(["dlctl watch", *(training_ids or [])])
        raise typer.BadParameter(f"--follow needs --json or --csv; `{watch}` shows curves")
    if of_platform:
        return _platform(training_ids or [], as_json)
    from dlctl.service.client import chosen
    from dlctl.service.fetching import measured

    mine = client()
    records = chosen(mine.store, training_ids, wanted)
    if not records:
        return output.note(NOTHING)
    if stay:
        return _follow(records, since, names, as_csv)
    found = {record.training_id: list(measured(mine, record, since, names)) for record in records}
    what = "such metrics" if names or since else "metrics"
    if export:
        _export(mine, export, records, found)
    if as_json or as_csv:
        _print_records(found, as_csv)
        for training_id in (each for each, some in found.items() if not some):
            output.note(f"there are no {what} of {training_id}")
    elif not export:
        _print_table(found, what)
    return None


def _export(
    mine: Client, targets: Sequence[str], records: Sequence[Record], found: dict[str, list[Entry]]
) -> None:
    from dlctl.outputs.metrics import exports
    from dlctl.service.describe import parameters

    wanted = [exports.parse_target(each) for each in targets]  # all of them before any is written
    takes = any(name in exports.TAKE_PARAMETERS for name, _ in wanted)
    measured = [exports.Measured(record, found[record.training_id],
                                 parameters(mine, record) if takes else {})
                for record in records]  # fmt: skip
    for name, place in wanted:
        with writing(Path(place)):
            output.note(exports.export(name, place, measured))


def _print_records(found: dict[str, list[Entry]], as_csv: bool, head: bool = True) -> None:
    from dlctl.outputs.metrics.formats import print_csv, rows

    if as_csv:
        print_csv((row for i, some in found.items() for row in rows(i, some)), head=head)
        return
    for training_id, some in found.items():
        for entry in some:
            output.json_line({"training": training_id, **entry.plain()})


def _print_table(found: dict[str, list[Entry]], what: str) -> None:
    from dlctl.outputs.metrics.formats import summary

    for training_id, some in found.items():
        if len(found) > 1:
            output.line(f"{training_id}:")
        output.table(["metric", "newest", "best", "at step", "points", "steps"], summary(some),
                     empty=f"there are no {what} of {training_id}")  # fmt: skip


def _follow(records: Sequence[Record], since: int, names: str | None, as_csv: bool) -> None:
    """Print new records until all trainings have ended; Ctrl-C leaves them running."""
    from dlctl.live.sites import live_of
    from dlctl.outputs.metrics.files import EntryReader
    from dlctl.outputs.metrics.formats import chosen

    readers = {record.training_id: EntryReader(record) for record in records}
    fresh: dict[str, list[Entry]] = {}

    def read(session: Session, mine: list[Record]) -> set[str]:
        for training_id in (record.training_id for record in mine):
            if entries := readers[training_id].news(session.transport):
                fresh[training_id] = list(chosen(entries, since, names))
        return set(fresh)

    mine, head = client(), True
    with closing(live_of(mine.store, mine.open, records, read)) as live:
        for _ in live.looks():
            for training_id, some in fresh.items():
                _print_records({training_id: some}, as_csv, head)
                head = False
            fresh.clear()


def _platform(sites: Sequence[str], as_json: bool) -> None:
    """Print figures of sites, by default of all that have trainings; a silent one ends none."""
    from dlctl.errors import TransportError
    from dlctl.outputs.metrics.platform import platform

    mine = client()
    records = mine.refreshed(mine.store.all())[0]
    found, silent = [], None
    for site in sites or sorted({record.site for record in records}):
        try:
            with opened(site) as session:
                found.append(platform(session, site, [r for r in records if r.site == site]))
        except TransportError as error:
            silent = error
    output.report(found, as_json, lambda _: output.table(
        ["site", "trainings", "running", "nodes", "idle nodes", "node time", "lost", "exchanging",
         "idle"],
        [_platform_row(each) for each in found],
        empty="" if silent else "there are no trainings yet"))  # fmt: skip
    if found and not as_json:
        output.note("lost, exchanging and idle are shares of the node time")
    if silent is not None:
        raise silent


def _platform_row(each: Platform) -> list[str]:
    from dlctl.series.readable import held_span
    from dlctl.units import several

    def share(hours: float) -> str:
        return f"{100 * hours / each.node_hours:.1f} %" if each.node_hours else "-"

    idle = several([f"{node.host} ({node.training_id})" for node in each.idle]) or "none"
    return [each.site, str(each.trainings), str(each.running), str(each.nodes_held), idle,
            held_span(3600 * each.node_hours), share(each.lost_node_hours),
            share(each.exchange_node_hours), share(each.idle_node_hours)]  # fmt: skip


@filtered
def watch(
    training_ids: list[str] = IDS, *, wanted: Filter,
    once: bool = typer.Option(False, "--once", help="Print one picture and end."),
    as_json: bool = typer.Option(
        False, "--json", help="Of a search: print an object for each trial that ends and for each "
        "change of state; with --once, one."
    ),
) -> None:  # fmt: skip
    """Watch trainings, or a search, in the terminal.

    Of trainings it shows curves, the six answers, learners and the log; of a search the best so
    far, trials and workers. A pipe gets plain text.

    Example: dlctl watch digits-3k9f
    """
    from dlctl.service.client import chosen
    from dlctl.terminal.watch import Watched, watch_in_pipe, watch_on_terminal

    mine = client()
    records = chosen(mine.store, training_ids, wanted)
    if not records:
        return output.note(NOTHING)
    if len(records) == 1 and records[0].is_search:
        return _watch_search(mine, records[0], once, as_json)
    if as_json:
        follow = " ".join(["dlctl metrics --follow --json", *(r.training_id for r in records)])
        raise typer.BadParameter(f"--json is for a search: {follow}")
    watched = Watched(mine.store, mine.open_to_watch, records)
    with closing(watched.live):
        if output.has_whole_screen() and not once:
            watch_on_terminal(watched)
        else:
            columns = shutil.get_terminal_size((80, 24)).columns
            output.note("" if once else output.why_no_screen())
            watch_in_pipe(watched, output.raw, columns, follow=not once)
    return None


def _watch_search(mine: Client, record: Record, once: bool, as_json: bool) -> None:
    from dlctl.terminal import search_watch

    watched = search_watch.Watched(mine.store, mine.open_to_watch, record)
    write_json = output.json_line if as_json else None
    with closing(watched.live):
        if once:
            columns = shutil.get_terminal_size((80, 24)).columns
            search_watch.watch_search_once(watched, columns, output.raw, write_json)
        elif output.has_whole_screen() and not as_json:
            search_watch.watch_search_on_terminal(watched)
        else:
            output.note("" if as_json else output.why_no_screen())
            search_watch.watch_search_in_pipe(watched, output.raw, write_json)


@filtered
def dashboard(
    training_ids: list[str] = typer.Argument(
        None, metavar="ID", autocompletion=complete_ids, show_default=False,
        help="Training ids; all trainings by default.",
    ),
    *, wanted: Filter,
    site: str | None = typer.Option(
        None, "--site", "-s", autocompletion=complete_sites, help="Only trainings on this site."
    ),
    port: int = typer.Option(0, "--port", min=0, max=65535, help="Any free port by default."),
    export: Path | None = typer.Option(
        None, "--export", metavar="FILE", help="Write one HTML file that needs no server, and end."
    ),
    no_browser: bool = typer.Option(False, "--no-browser", help="Only print the address."),
) -> None:  # fmt: skip
    """Show trainings and searches in the browser.

    The page is served on this machine only, until Ctrl-C.

    Example: dlctl dashboard digits-3k9f
    """
    from dlctl.dashboard.live import LiveFeed
    from dlctl.service.client import chosen
    from dlctl.sites.files import find_site

    mine = client()
    records = chosen(mine.store, training_ids, wanted) if training_ids else []
    ids = [record.training_id for record in records]
    if site:
        find_site(site)  # refuses a name that is no site's
    with closing(LiveFeed(mine.store, mine.open, ids, site, wanted.fits)) as feed:
        if export is not None:
            from dlctl.dashboard.report import report

            return write_text(export, report(feed, ids))
        from dlctl.dashboard.serve import serve

        kind = "search" if records and records[0].is_search else "training"
        serve(feed, port, f"/{kind}/{ids[0]}" if len(ids) == 1 else "/", warn=output.warn,
              open_browser=not no_browser, tell=lambda url: output.raw(f"{url}\n"))  # fmt: skip
    return output.note("the dashboard has ended; the trainings continue")


def serve(
    socket: Path | None = typer.Option(
        None, "--socket", metavar="FILE", help="The Unix socket, which only you can open; by "
        "default serve.sock in your runtime folder.",
    ),
    port: int | None = typer.Option(
        None, "--port", min=0, max=65535, help="Listen on a port of 127.0.0.1 in its place; each "
        "request needs the token. 0: any free one.",
    ),
    address: str = typer.Option("127.0.0.1", "--address", help="With --port: another address."),
    certificate: Path | None = typer.Option(None, "--tls-certificate", metavar="FILE",
                                            help="With --port: serve HTTPS."),
    key: Path | None = typer.Option(None, "--tls-key", metavar="FILE",
                                    help="The certificate's key."),
    proxy: bool = typer.Option(
        False, "--trust-proxy", help="With --port: a proxy stands before it, which does TLS."
    ),
) -> None:  # fmt: skip
    """Serve the REST interface until Ctrl-C.

    It does what the commands do, with your sites and your trainings; both may be used at once.

    Example: dlctl serve --port 8470
    """
    from dlctl.serve import run
    from dlctl.serve.desk import Desk
    from dlctl.service.client import Client, open_site
    from dlctl.service.pool import Pool

    if port is None and (certificate or key or proxy or address != "127.0.0.1"):
        raise typer.BadParameter("--address, --tls-… and --trust-proxy need --port")
    if port is not None and socket is not None:
        raise typer.BadParameter("either --socket or --port says where to listen")
    place = run.Place(socket or run.default_socket() if port is None else None, port or 0, address,
                      certificate, key, proxy)  # fmt: skip

    desk = Desk(Client(client().store, pool=Pool(open_site)), default_site())
    if port is not None:
        output.note(f"the token is in {run.token_file()}")
    run.serve(desk, place, lambda address: output.raw(f"{address}\n"))
    output.note("the server has ended; the trainings continue")
