"""The commands of `dlctl search`: what other trainings have not; the hub itself is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dlctl.cli import output
from dlctl.cli.common import JSON, SEARCH_ID, SITE, client, opened, searched, write_text, writing
from dlctl.units import counted

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.record import Record
    from dlctl.search.trials import TrialRow, Trials

_SHOWN = 20

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
    output.hint(f"dlctl status {record.training_id}")


def best(
    search_id: str | None = SEARCH_ID,
    manifest: Path | None = typer.Option(
        None, "--manifest", metavar="FILE",
        help="Write what runs it again: a manifest, or a search.yml of one trial; `-` prints it.",
    ),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Show the best trial so far.

    Example: dlctl search best digits-3k9f --manifest best.yml
    """
    from dlctl.errors import ResultsError
    from dlctl.search.overview import read_overview
    from dlctl.search.summary import best_words, metric_words

    with searched(search_id) as (session, record, _):
        found = read_overview(session, record).trials
        if (row := found.best) is None:
            raise ResultsError(f"{record.training_id}: {best_words(found)}",
                               hint=f"dlctl search trials {record.training_id}")  # fmt: skip
        if manifest is not None:
            return _write_manifest(session, record, found, row, manifest)
    shown = {"trial": row.number, found.spec.metric: metric_words(row)} | row.point
    return output.report(row, as_json, lambda _: output.fields(shown))


def trials(
    search_id: str | None = SEARCH_ID,
    all_: bool = typer.Option(False, "--all", help="All of them, and not only the newest."),
    as_json: bool = JSON,
) -> None:
    """List the trials: what was tried, and what came of it.

    Example: dlctl search trials digits-3k9f --json
    """
    from dlctl.search.overview import read_overview

    with searched(search_id) as (session, record, _):
        found = read_overview(session, record).trials
    rows = found.rows if all_ or as_json else found.rows[-_SHOWN:]
    output.report(rows, as_json, lambda _: _print_trials(rows, found))


def export(
    search_id: str | None = SEARCH_ID,
    as_csv: bool = typer.Option(False, "--csv", help="Print a row of CSV for each trial."),
    as_json: bool = typer.Option(
        False, "--json", help="Print specification, trials and reports as one JSON object."
    ),
    parquet: Path | None = typer.Option(
        None, "--parquet", metavar="FILE", help="Write a row for each trial as Parquet."
    ),
    html: Path | None = typer.Option(
        None, "--html", metavar="FILE", help="Write the dashboard's page as one file."
    ),
    optuna: Path | None = typer.Option(
        None, "--optuna", metavar="FILE",
        help="Write a study that Optuna and its dashboard open: SQLite if FILE ends in .db.",
    ),
) -> None:  # fmt: skip
    """Write all trials of a search for other programs.

    Example: dlctl search export digits-3k9f --csv
    """
    from dlctl.lifecycle import refresh
    from dlctl.search import exports
    from dlctl.search.overview import read_overview

    if as_csv + as_json + sum(path is not None for path in (parquet, html, optuna)) != 1:
        raise typer.BadParameter("name one of --csv, --json, --parquet, --html and --optuna")
    with searched(search_id) as (session, record, store):
        overview = read_overview(session, record)
        found = overview.trials
        if html is not None:
            from dlctl.dashboard.report import search_report
            from dlctl.search.page import page_of

            page = page_of(overview, refresh(session, [record], store)[0])
            return write_text(html, search_report(page))
    if as_csv:
        exports.print_csv(found)
    elif as_json:
        output.report(_whole(record, found), True, lambda _: None)
    elif parquet is not None:
        with writing(parquet):
            count = exports.write_parquet(parquet, found)
        output.note(f"{counted(count, 'trial')} in {parquet}")
    elif optuna is not None:
        with writing(optuna):
            count = exports.write_optuna(optuna, record.training_id, found)
        output.note(f"{counted(count, 'trial')} in {optuna}")
    return None


def replay(
    search_id: str | None = SEARCH_ID,
    timings: int | None = typer.Option(
        None, "--timings", min=0, show_default=False,
        help="With how many other timings of the workers; 3 for a deterministic search.",
    ),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Prove that a search tries the same again.

    Its strategy is asked anew at its site. It is made from the seed and told the recorded results,
    in the order of the log and in that of other timings of the workers. Exit code 10 if a trial
    differs.

    Example: dlctl search replay digits-3k9f
    """
    from dlctl.errors import TrainingFailed
    from dlctl.search.overview import read_overview
    from dlctl.search.sent import replay as ask_again

    with searched(search_id) as (session, record, _):
        read_overview(session, record)  # refuses what is no search
        answer = ask_again(session, record, timings)
    output.report(answer, as_json, lambda _: _print_replay(answer))
    if (differs := answer["differs"]) is not None:
        order = "log" if differs["by"] == "log" else "other timings of the workers"
        raise TrainingFailed(
            f"{record.training_id}: trial {differs['number']} differs, in the order of the {order}:"
            f" recorded is {_words(differs['recorded'])}, asked again {_words(differs['asked'])}",
            hint="a strategy must depend on its seed, and on what it was told, alone"
            if differs["by"] == "log" or answer["deterministic"]
            else "only `deterministic: true` makes the trials independent of the timing",
        )


def scale(
    search_id: str | None = SEARCH_ID,
    workers: str | None = typer.Option(None, "--workers", metavar="N|LEAST..MOST",
                                       help="How many worker jobs, as in 4, or in 8..40."),
    partition: str | None = typer.Option(
        None, "--partition", help="Of these workers; each partition has a number of its own."
    ),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Show or set how many workers a search may have.

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


def _write_manifest(
    session: Session, record: Record, found: Trials, row: TrialRow, path: Path
) -> None:
    from dlctl.search.sent import manifest_of

    text = manifest_of(session, record, found.spec, row)
    if str(path) == "-":
        return output.document(text)
    write_text(path, text)
    if path.resolve().parent != Path(record.manifest_path).parent:
        output.warn(f"the program lies in {Path(record.manifest_path).parent}: put it there")
    is_training = found.spec.task.type == "training"
    return output.hint(f"dlctl {'submit' if is_training else 'search start'} {path}")


def _whole(record: Record, found: Trials) -> dict[str, Any]:
    """Return everything about the trials, as JSON has it."""
    reports = {
        number: [{"step": step, "value": value} for step, value in some]
        for number, some in found.reports.items()
    }
    rows = [asdict(row) | {"reports": reports.get(row.number, [])} for row in found.rows]
    return {"search": record.training_id, "spec": found.spec, "trials": rows}


def _print_replay(answer: dict[str, Any]) -> None:
    if not answer["same"]:
        return
    how = "in the order of the log"
    if answer["timings"]:
        how += f" and with {counted(answer['timings'], 'other timing')} of the workers"
    count = answer["trials"]
    what = "the one trial is" if count == 1 else f"all {count:,} trials are"
    output.line(f"{what} the same, {how}" if count else "there is no trial so far")


def _words(trial: dict[str, Any] | None) -> str:
    from dlctl.search.summary import point_words

    if trial is None:
        return "nothing"
    after = f" after trial {trial['parent']}" if "parent" in trial else ""
    return point_words(trial["point"], 200) + after


def _print_trials(rows: Sequence[TrialRow], found: Trials) -> None:
    from dlctl.search.summary import metric_words, point_words
    from dlctl.series.readable import exact_span

    table = [
        [str(row.number), row.outcome_words, metric_words(row),
         exact_span(row.seconds) if row.outcome else "-", row.worker or "-",
         row.error or point_words(row.point)]
        for row in rows
    ]  # fmt: skip
    output.table(["trial", "outcome", found.spec.metric, "took", "worker", "point"], table,
                 "no trial so far")  # fmt: skip


GROUPS = {"search": (
    "Search for hyper-parameters and architectures.",
    (init, start, trials, best, export, replay, scale),
)}  # fmt: skip
