"""Commands that only read how trainings and searches are: list, status, show."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from dlctl.cli import output
from dlctl.cli.common import (
    ID,
    IDS,
    JSON,
    NOTHING,
    TRIAL,
    check_trial,
    client,
    complete_ids,
    complete_sites,
    filtered,
    print_record,
    raise_lasting,
    training,
    whole,
)
from dlctl.errors import RecordError, TransportError

if TYPE_CHECKING:
    from dlctl.live.sites import Live
    from dlctl.record import Record
    from dlctl.service.client import Client, Filter
    from dlctl.terminal.text import Line
    from dlctl.terminal.trainings import Columns

_EITHER = "Training id, or a unique beginning or end of it."
Fits = Callable[["Record"], bool]


@filtered
def list_(
    offline: bool = typer.Option(False, "--offline", help="Ask no site; show the local record."),
    site: str | None = typer.Option(None, "--site", "-s", help="Only trainings on this site.",
                                    autocompletion=complete_sites),
    *, wanted: Filter,
    sort: str = typer.Option(
        "", "--sort", metavar="COLUMN", help="Sort by a column or a metric, such as loss or "
        "best:validation_accuracy: the best first."
    ),
    columns: str = typer.Option(
        "", "--columns", metavar="A,B,C", help="Show these columns, among them metrics, keys of a "
        "sweep, and name, attempt, job, created, tags, varied."
    ),
    watch: bool = typer.Option(
        False, "--watch", "-w",
        help="Keep the table up to date until q or Ctrl-C; a pipe gets a line for each change, "
        "until all have ended.",
    ),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """List your trainings, newest first.

    The sites of trainings that have not ended are asked.

    A state with a time, such as `TRAINING (3 min ago)`, is the last known one.
    A wide terminal shows more columns; the trainings of a sweep have one for each key that varies.

    Example: dlctl list --tag rates --sort validation_accuracy
    """
    from dlctl.service.describe import runs_of

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

    shape = _shape(columns, sort)
    if watch:
        if metrics := shape.metrics(mine.store.all()):
            raise typer.BadParameter(f"--watch shows no metrics, such as {metrics[0]}")
        _watch_list(mine, is_meant, wanted.fits, shape, as_json=as_json)
        return
    records = [record for record in reversed(mine.store.all()) if is_meant(record)]
    still_open = [r for r in records if not r.state.final or r.notice_tries]
    if still_open and not offline:
        renewed, _ = mine.refreshed(still_open, at_once=True)
        known = {each.training_id: each for each in renewed}
        records = [known.get(r.training_id, r) for r in records]
    records = [r for r in records if wanted.fits(r)]
    shape = shape.shortened(records)
    if metrics := shape.metrics(records):
        shape = replace(shape, runs=runs_of(mine, records))
    records = shape.ordered(records, time.time())
    rows = [each.plain() | shape.measured(each, metrics) for each in records] if as_json else []
    none = (
        "no trainings yet: `dlctl init my-training` creates one, `dlctl adopt SITE` finds those of "
        "a site"
    )
    empty = NOTHING if wanted else none
    output.report(rows, as_json, lambda _: _print(records, empty, shape, fresh=not offline))


def _shape(columns: str, sort: str) -> Columns:
    from dlctl.terminal.trainings import Columns

    return Columns([name.strip() for name in columns.split(",") if name.strip()], sort.strip())


def _print(records: list[Record], empty: str, shape: Columns, *, fresh: bool) -> None:
    """Print a table as wide as the terminal; a pipe gets all columns."""
    import shutil

    from dlctl.terminal.trainings import table

    if not records:
        return output.table([], [], empty)
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    lines = table(records, columns, time.time(), fresh=fresh, shape=shape)
    return output.raw("".join(f"{line.render(output.has_colours())}\n" for line in lines))


@filtered
def status(training_ids: list[str] = IDS, *, wanted: Filter, as_json: bool = JSON) -> None:
    """Ask the sites for the state of trainings.

    Of a search it shows how far it is, the best trial so far, and why trials wait.

    Example: dlctl status digits-3k9f
    """
    from dlctl.service.client import chosen

    mine = client()
    records = chosen(mine.store, training_ids, wanted)
    if len(records) == 1 and records[0].is_search:
        from dlctl.cli.views.search import print_status

        try:
            return print_status(mine, records[0], as_json)
        except RecordError as error:  # its files are gone or damaged
            output.warn(error.message)
        except TransportError:
            pass  # the state that was known last is told with the reason
    known, problems = mine.refreshed(records)
    many = [[r.training_id, r.state_in_words, r.reason] for r in known]
    output.report(whole(known), as_json,
                  lambda _: print_record(known[0]) if len(known) == 1 else
                  output.table(["training", "state", "reason"], many, NOTHING))  # fmt: skip
    return raise_lasting(problems)


def show(
    training_id: str | None = ID,
    script: bool = typer.Option(False, "--script", help="Print the batch script that was sent."),
    everything: bool = typer.Option(
        False,
        "--all",
        "-a",
        help="Print all that is known: plan, learners, metrics, servers; of "
        "a search that of its hub.",
    ),
    trial: int | None = TRIAL,
    as_json: bool = JSON,
) -> None:
    """Show the story of a training, a search or a trial.

    Of a training it is one screen: state, why, progress, what was saved; of a search its trials,
    parameters, brokers and workers.

    Example: dlctl show digits-3k9f --all
    """
    from dlctl.cli.views.training import print_details, print_story
    from dlctl.service.describe import describe

    with training(training_id) as (session, record, store):
        check_trial(record, trial)
        if record.is_search and not (script or everything):
            from dlctl.cli.views.search import show_search

            return show_search(session, record, store, trial, as_json)
        if script:
            from dlctl.request.attempts import read_newest

            text = read_newest(session.transport, record).script.decode()
            with output.paged(not as_json):
                return output.report({"script": text}, as_json, lambda _: output.document(text))
        details = describe(session, record, store, output.Shown())
    with output.paged(everything and not as_json):
        return output.report(details, as_json, print_details if everything else print_story)


def diff(
    first: str = typer.Argument(..., metavar="A", autocompletion=complete_ids, help=_EITHER),
    second: str = typer.Argument(..., metavar="B", autocompletion=complete_ids, help=_EITHER),
    as_json: bool = JSON,
) -> None:
    """Compare two trainings: code, metrics, plan, manifest.

    Example: dlctl diff digits-3k9f digits-8xq2
    """
    from dlctl.cli.views.model import print_differences
    from dlctl.service.difference import difference

    mine = client()
    old, new = (mine.store.find(each) for each in (first, second))
    output.report(difference(mine, old, new), as_json, print_differences)


# The list that stays new -----------------------------------------------------------------------


def _watch_list(
    mine: Client, fits: Fits, shown: Fits, shape: Columns, *, as_json: bool
) -> None:  # fmt: skip
    """Show trainings until `q` or Ctrl-C; in a pipe until all have ended.

    Trainings that come meanwhile are shown, too.

    Args:
        fits: whether a training is meant, whatever its state.
        shown: whether it is shown.
    """
    from dlctl.live.sites import Live

    live = Live(mine.store, mine.open_to_watch, lambda: list(filter(fits, mine.store.all())))
    with closing(live):
        if output.has_whole_screen() and not as_json:
            _on_terminal(live, shown, shape)
        else:
            _in_pipe(live, shown, as_json=as_json)


def _shown(live: Live, shown: Fits) -> list[Record]:
    """Return what is shown, newest first; of a silent site with the reason."""
    silent = dict(live.errors)  # threads change it
    return [
        replace(r, reason=f"{r.reason} [{silent[r.site].message}]".strip())
        if r.site in silent and not r.state.final else r
        for r in reversed(live.records) if shown(r)
    ]  # fmt: skip


def _on_terminal(live: Live, shown: Fits, shape: Columns) -> None:
    import shutil

    from dlctl.terminal.trainings import frame, table
    from dlctl.terminal.watch import colours, draw_until_left
    from dlctl.terminal.words import Still

    def newest() -> list[Record]:
        return shape.ordered(_shown(live, shown), time.time())

    def make() -> list[Record]:
        live.start()  # a site may be new
        return newest()

    def draw(records: list[Record], view: object, columns: int, rows: int) -> list[Line]:  # noqa: ARG001
        trouble = {site: error.message for site, error in dict(live.errors).items()}
        return frame(records, trouble, columns, rows, time.time(), shape)

    try:
        draw_until_left(live, make, Still(), draw, lambda view, key, records: view)  # noqa: ARG005
    finally:  # the picture is gone with its screen
        columns = shutil.get_terminal_size().columns
        output.raw("".join(
            f"{line.render(colours())}\n"
            for line in table(newest(), columns, time.time(), shape=shape)
        ))  # fmt: skip


def _in_pipe(live: Live, shown: Fits, *, as_json: bool) -> None:
    printed: dict[str, tuple[str, str]] = {}
    for _ in live.looks():
        for record in _shown(live, shown):
            now = (str(record.state), record.reason)
            if printed.get(record.training_id) != now:
                printed[record.training_id] = now
                _tell(record, as_json=as_json)
        if live.ended:
            break
    output.note("" if printed else NOTHING)


def _tell(record: Record, *, as_json: bool) -> None:
    if as_json:
        output.json_line(record)
        return
    from dlctl.terminal.trainings import reason_of

    now = time.time()
    why = reason_of(record, now)
    clock = time.strftime("%H:%M:%S", time.localtime(now))
    output.line(f"{clock} {record.training_id} {record.state}{f': {why}' if why else ''}")
    sys.stdout.flush()
