"""Commands that show how a search goes: search watch, show, logs."""

from __future__ import annotations

import dataclasses
import shutil
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dlctl.cli import output
from dlctl.cli.common import (
    JSON,
    SEARCH_ID,
    client,
    searched,
)
from dlctl.cli.states.following import LogLines, end_of_following, follow, print_pieces
from dlctl.units import unix_seconds

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.record import Record, RecordStore
    from dlctl.search.importance import Importance
    from dlctl.search.overview import Overview
    from dlctl.search.trials import TrialRow, Trials

_LINES = 20
_STEPS = 20


def watch(
    search_id: str | None = SEARCH_ID,
    once: bool = typer.Option(False, "--once", help="Print one picture and end."),
    as_json: bool = typer.Option(
        False, "--json", help="Print a JSON object for each trial that ends; with --once, one."
    ),
) -> None:  # fmt: skip
    """Watch a search: the best so far, trials, workers; a pipe gets a line for each trial.

    Example: dlctl search watch digits-3k9f
    """
    from dlctl.terminal import search_watch

    mine = client()
    watched = search_watch.Watched(mine.store, mine.open, mine.store.find_search(search_id))
    with closing(watched.live):
        write_json = output.json_line if as_json else None
        if once:
            columns = shutil.get_terminal_size((80, 24)).columns
            search_watch.watch_search_once(watched, columns, output.raw, write_json)
        elif output.has_whole_screen() and not as_json:
            search_watch.watch_search_on_terminal(watched)
        else:
            search_watch.watch_search_in_pipe(watched, output.raw, write_json)


def show(
    search_id: str | None = SEARCH_ID,
    trial: int | None = typer.Option(None, "--trial", "-t", min=0, help="Only this trial."),
    as_json: bool = JSON,
) -> None:
    """Show everything about one search, or about one of its trials.

    Example: dlctl search show digits-3k9f --trial 12
    """
    from dlctl.lifecycle import refresh
    from dlctl.search.overview import read_overview
    from dlctl.search.summary import whole

    with searched(search_id) as (session, record, store):
        record = refresh(session, [record], store)[0]
        seen = read_overview(session, record)
        if trial is not None:
            told = _gather_trial(session, record, seen, trial)
            return output.report(told, as_json, lambda _: _print_trial(told, seen.trials))
    told = record.plain() | dataclasses.asdict(whole(seen, record))
    return output.report(told, as_json, lambda _: _print_search(record, seen))


def logs(
    search_id: str | None = SEARCH_ID,
    trial: int | None = typer.Option(
        None, "--trial", "-t", min=0, help="Only what this trial's program prints."
    ),
    stay: bool = typer.Option(False, "--follow", "-f", help="Stay and print new lines."),
    as_json: bool = typer.Option(False, "--json", help="Print each line as a JSON object."),
) -> None:
    """Print the logs of hub, brokers, model and workers, or of one trial.

    `--follow` stays until the search, or the trial, has ended.

    Example: dlctl search logs digits-3k9f --trial 12
    """
    from dlctl.logs.reader import read
    from dlctl.search.logs import search_logs, trial_logs
    from dlctl.search.overview import read_overview

    with searched(search_id) as (session, record, store):
        seen = read_overview(session, record)
        if trial is not None:
            row = seen.trials.find(trial)
            reader = trial_logs(record.job_dir, row)
            if stay:
                return _follow_trial(session, record, store, row.number, as_json)
        else:
            reader = search_logs(record.job_dir)
            if stay:
                return end_of_following(
                    follow(session, record, store, reader, LogLines(as_json=as_json))
                )
        if not print_pieces(read(session.transport, reader), LogLines(as_json=as_json)):
            who = "" if trial is None else f"trial {trial} of "
            output.note(f"{who}{record.training_id} has printed nothing so far")
    return None


COMMANDS = (watch, show, logs)


def _follow_trial(
    session: Session, record: Record, store: RecordStore, number: int, as_json: bool
) -> None:
    """Print what a trial prints until it, or the search, has ended."""
    from dlctl.search.logs import trial_logs
    from dlctl.search.overview import SearchReader
    from dlctl.service.bringing import follow as follow_log

    search = SearchReader(record)
    search.refresh(session, record)

    def has_ended(stays: Session, known: Record) -> bool:
        search.refresh(stays, known)
        return bool(search.overview.trials.find(number).outcome)

    lines = partial(print_pieces, lines=LogLines(as_json=as_json))
    reader = trial_logs(record.job_dir, search.overview.trials.find(number))
    follow_log(session, record, store, output.Shown(), lines, reader, has_ended)
    row = search.overview.trials.find(number)
    output.note(f"trial {number}: {row.outcome_words}{f': {row.error}' if row.error else ''}")


def _gather_trial(session: Session, record: Record, seen: Overview, number: int) -> dict[str, Any]:
    from dlctl.search.logs import last_lines, runs_of

    row = seen.trials.find(number)
    best = seen.trials.best
    return dataclasses.asdict(row) | {
        "is_best": best is not None and best.number == number,
        "reports": [{"step": s, "value": v} for s, v in seen.trials.reports.get(number, [])],
        "runs": runs_of(session.transport, record.job_dir, row),
        "log": last_lines(session.transport, record.job_dir, row, _LINES),
    }


def _print_trial(told: dict[str, Any], trials: Trials) -> None:
    from dlctl.search.summary import metric_words
    from dlctl.series.readable import exact_span

    row: TrialRow = trials.find(told["number"])
    output.fields({
        "trial": row.number, "outcome": row.outcome_words + (", the best" * told["is_best"]),
        trials.spec.metric: metric_words(row), "error": row.error, "worker": row.worker,
        "took": exact_span(row.seconds) if row.outcome else "",
        "asked": _clock(row.asked_at), "began": _clock(row.started_at),
        "ended": _clock(row.ended_at), "runs": told["runs"], "task": row.id,
        "goes on from trial": row.parent,
    } | {f"  {name}": value for name, value in row.point.items()})  # fmt: skip
    if reports := told["reports"]:
        output.line("")
        shown = reports if len(reports) <= _STEPS else [
            reports[n * (len(reports) - 1) // (_STEPS - 1)] for n in range(_STEPS)
        ]  # fmt: skip
        output.table(["step", trials.spec.metric],
                     [[str(each["step"]), f"{each['value']:.6g}"] for each in shown])  # fmt: skip
        if len(shown) < len(reports):
            output.note(f"{len(shown)} of {len(reports)} reports; --json prints all")
    if told["log"]:
        output.line("")
        for line in told["log"]:
            output.line(f"| {line}")


def _print_search(record: Record, seen: Overview) -> None:
    import time

    from dlctl.cli.common import ago
    from dlctl.contract import State
    from dlctl.search.summary import (
        best_words,
        count_words,
        importance_of,
        left_of,
        strategy_words,
    )
    from dlctl.search.waits import why_trials_wait

    created = unix_seconds(record.created_at)
    spec, task = seen.spec, seen.spec.task
    is_done = record.state is State.COMPLETED
    output.fields({
        "search": record.training_id, "name": record.name, "state": record.state_in_words,
        "reason": "" if is_done else record.reason, "hint": "" if is_done else record.hint,
        "site": record.site, "attempt": record.attempt,
        "hub's job": record.job_id,
        "created": ago(time.time() - created) if created else "",
        "folder": str(Path(record.manifest_path).parent), "job directory": record.job_dir,
        "strategy": strategy_words(seen),
        "metric": f"{spec.metric}, {'maximized' if spec.maximize else 'minimized'}",
        "a trial": _task_words(task),
        "trials": count_words(seen),
        "left": "" if record.state.final else left_of(seen, record).words,
        "waits": "\n".join(why_trials_wait(seen, record)),
        "best": best_words(seen.trials),
    })  # fmt: skip
    output.line("")
    important = {each.name: _share(each) for each in importance_of(seen)}
    rows = [[p.name, _values(p), _when(p), important[p.name]] for p in spec.space]
    output.table(["parameter", "values", "exists with", "importance"], rows)
    if seen.brokers and not record.state.final:
        output.line("")
        output.table(
            ["broker", "owned", "helped", "processing", "results", "accepted", "failed", "dropped"],
            [[b.broker, *map(str, (b.owned, b.helper, b.processing, b.results, b.accepted,
                                   b.failed, b.dropped))] for b in seen.brokers])  # fmt: skip
    if rows := _worker_rows(seen):
        output.line("")
        output.table(["worker", "job", "state", "where or why", "runs", "ended"], rows)


def _worker_rows(seen: Overview) -> list[list[str]]:
    told, jobs = seen.workers, {job.name: job for job in seen.jobs}
    done: dict[str, int] = {}
    for row in seen.trials.ended:
        done[row.worker] = done.get(row.worker, 0) + 1
    rows = []
    for name in sorted({*told, *jobs}, key=lambda name: (len(name), name)):
        job, worker = jobs.get(name), told.get(name)
        rows.append([
            name, job.job_id if job else "-", job.state if job else "-",
            (job.nodes or job.reason if job else "") or "-",
            str(worker.running) if worker else "-", str(done.get(name, 0)),
        ])  # fmt: skip
    return rows


def _task_words(task: Any) -> str:
    from dlctl.units import counted, format_duration, format_size

    what = {"training": "a training of", "python": "the class", "exec": "the command"}[task.type]
    time_s, memory_bytes = task.time_limit_s, task.memory_bytes
    parts = [
        f"{what} {task.target}", counted(task.cpus, "CPU"),
        counted(task.gpus, "GPU") if task.gpus else "",
        format_size(memory_bytes) if memory_bytes else "",
        f"at most {format_duration(time_s)}" if time_s else "",
    ]  # fmt: skip
    return ", ".join(filter(None, parts))


def _values(parameter: Any) -> str:
    if parameter.kind == "choice":
        return ", ".join(map(str, parameter.choices))
    text = f"{parameter.kind} {parameter.low:g} to {parameter.high:g}"
    if parameter.log:
        text += ", logarithmic"
    return text + (f" in steps of {parameter.step:g}" if parameter.step else "")


def _share(each: Importance) -> str:
    if each.share is None:
        return "-"
    best = "no more than chance" if each.by_chance else f"best at {each.best}"
    return f"{100 * each.share:.0f} %, {best}"


def _when(parameter: Any) -> str:
    return "; ".join(f"{name}: {', '.join(map(str, v))}" for name, v in parameter.when.items())


def _clock(unix_s: float) -> str:
    import time

    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s)) if unix_s else ""
