"""Views of a search's progress, and of one of its trials."""

from __future__ import annotations

import dataclasses
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlctl.cli import output
from dlctl.cli.common import ago
from dlctl.contract import State
from dlctl.units import natural, unix_seconds

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.record import Record, RecordStore
    from dlctl.search.importance import Importance
    from dlctl.search.overview import Overview
    from dlctl.search.trials import TrialRow, Trials
    from dlctl.service.client import Client

_LINES = 20
_STEPS = 20


def print_status(mine: Client, record: Record, as_json: bool) -> None:
    """Print how far a search is, and submit the workers that its hub has asked for in vain."""
    from dlctl.search.summary import count_words, counts, result_words, strategy_words
    from dlctl.service import verbs

    with closing(mine.open(record.site)) as session:
        record, overview = verbs.status(session, record, mine.store)
    found = counts(overview, record)
    answer = record.plain() | dataclasses.asdict(found)
    is_done = record.state is State.COMPLETED
    shown = {
        "search": record.training_id, "site": record.site, "state": record.state_in_words,
        "reason": "" if is_done else record.reason, "hint": "" if is_done else record.hint,
        "trials": count_words(overview), "left": "" if record.state.final else found.left.words,
        "waits": "\n".join(found.waits), "strategy": strategy_words(overview),
    } | result_words(overview.trials)  # fmt: skip
    output.report(answer, as_json, lambda _: output.fields(shown))


def show_search(
    session: Session, record: Record, store: RecordStore, trial: int | None, as_json: bool
) -> None:
    """Print everything about one search, or about one of its trials."""
    from dlctl.lifecycle import refresh
    from dlctl.search.overview import read_overview
    from dlctl.search.summary import whole

    record = refresh(session, [record], store)[0]
    overview = read_overview(session, record)
    if trial is not None:
        answer = _gather_trial(session, record, overview.trials, trial)
        return output.report(answer, as_json, lambda _: _print_trial(answer, overview.trials))
    answer = record.plain() | dataclasses.asdict(whole(overview, record))
    return output.report(answer, as_json, lambda _: _print_search(record, overview))


def _gather_trial(session: Session, record: Record, trials: Trials, number: int) -> dict[str, Any]:
    from dlctl.search.logs import last_lines, runs_of

    row, best = trials.find(number), trials.best
    return dataclasses.asdict(row) | {
        "is_best": best is not None and best.number == number,
        "reports": [{"step": s, "value": v} for s, v in trials.reports.get(number, [])],
        "runs": runs_of(session.transport, record.job_dir, row),
        "log": last_lines(session.transport, record.job_dir, row, _LINES),
    }


def _print_trial(details: dict[str, Any], trials: Trials) -> None:
    from dlctl.search.summary import metric_words
    from dlctl.series.readable import exact_span

    row: TrialRow = trials.find(details["number"])
    output.fields({
        "trial": row.number, "outcome": row.outcome_words + (", the best" * details["is_best"]),
        trials.spec.metric: metric_words(row), "error": row.error, "worker": row.worker,
        "took": exact_span(row.seconds) if row.outcome else "",
        "asked": _clock(row.asked_at), "began": _clock(row.started_at),
        "ended": _clock(row.ended_at), "runs": details["runs"], "task": row.id,
        "goes on from trial": row.parent,
    } | {f"  {name}": value for name, value in row.point.items()})  # fmt: skip
    if reports := details["reports"]:
        output.line("")
        shown = reports if len(reports) <= _STEPS else [
            reports[n * (len(reports) - 1) // (_STEPS - 1)] for n in range(_STEPS)
        ]  # fmt: skip
        output.table(["step", trials.spec.metric],
                     [[str(each["step"]), f"{each['value']:.6g}"] for each in shown])  # fmt: skip
        if len(shown) < len(reports):
            output.note(f"{len(shown)} of {len(reports)} reports; --json prints all")
    if details["log"]:
        output.line("")
        for line in details["log"]:
            output.line(f"| {line}")


def _print_search(record: Record, overview: Overview) -> None:
    from dlctl.search.summary import (
        count_words,
        importance_of,
        left_of,
        result_words,
        strategy_words,
    )
    from dlctl.search.waits import why_trials_wait

    created = unix_seconds(record.created_at)
    spec, task = overview.spec, overview.spec.task
    is_done = record.state is State.COMPLETED
    output.fields({
        "search": record.training_id, "name": record.name, "state": record.state_in_words,
        "reason": "" if is_done else record.reason, "hint": "" if is_done else record.hint,
        "site": record.site, "attempt": record.attempt,
        "hub's job": record.job_id,
        "created": ago(time.time() - created) if created else "",
        "folder": str(Path(record.manifest_path).parent), "job directory": record.job_dir,
        "strategy": strategy_words(overview),
        "metric": f"{spec.metric}, {'maximized' if spec.maximize else 'minimized'}",
        "a trial": _task_words(task),
        "trials": count_words(overview),
        "left": "" if record.state.final else left_of(overview, record).words,
        "waits": "\n".join(why_trials_wait(overview, record)),
    } | result_words(overview.trials))  # fmt: skip
    output.line("")
    important = {each.name: _share(each) for each in importance_of(overview)}
    rows = [[p.name, _values(p), _when(p), important[p.name]] for p in spec.space]
    output.table(["parameter", "values", "exists with", "importance"], rows)
    if overview.brokers and not record.state.final:
        output.line("")
        output.table(
            ["broker", "owned", "helped", "processing", "results", "accepted", "failed", "dropped"],
            [[b.broker, *map(str, (b.owned, b.helper, b.processing, b.results, b.accepted,
                                   b.failed, b.dropped))] for b in overview.brokers])  # fmt: skip
    if rows := _worker_rows(overview):
        output.line("")
        output.table(["worker", "job", "state", "where or why", "runs", "ended"], rows)


def _worker_rows(overview: Overview) -> list[list[str]]:
    workers, jobs = overview.workers, {job.name: job for job in overview.jobs}
    done: dict[str, int] = {}
    for row in overview.trials.ended:
        done[row.worker] = done.get(row.worker, 0) + 1
    rows = []
    for name in sorted({*workers, *jobs}, key=natural):
        job, worker = jobs.get(name), workers.get(name)
        rows.append([
            name, job.job_id if job else "-", job.state if job else "-",
            (job.nodes or job.reason if job else "") or "-",
            str(worker.running) if worker else "-", str(_of_worker(done, name)),
        ])  # fmt: skip
    return rows


def _of_worker(done: dict[str, int], name: str) -> int:
    """Return how many trials a worker has ended; `w1.*` stands for all of its group."""
    if name.endswith("*"):
        return sum(count for worker, count in done.items() if worker.startswith(name[:-1]))
    return done.get(name, 0)


def _task_words(task: Any) -> str:
    from dlctl.units import counted, format_duration, format_size

    words = {"training": "a training of", "python": "the class", "exec": "the command"}
    what = words.get(task.type, f"{task.type}:")
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
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s)) if unix_s else ""
