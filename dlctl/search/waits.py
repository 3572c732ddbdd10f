"""Why trials of a search wait, in sentences. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dlctl.contract import State
from dlctl.contract import search as names
from dlctl.contract.programs.advice import with_id
from dlctl.units import counted, format_size, format_span

if TYPE_CHECKING:
    from dlctl.record import Record
    from dlctl.search.overview import Overview, WorkerJob

_SILENT_S = 15.0
"""A broker tells about itself every second."""


def why_trials_wait(overview: Overview, record: Record) -> list[str]:
    """Return why trials that were asked for, or that are left to try, do not run.

    Nothing is returned for a search that is done, or whose trials all run.
    """
    search_id, state = record.training_id, record.state
    outstanding = overview.trials.outstanding
    if state.final:
        if state is State.COMPLETED:
            return []
        left = f"{counted(outstanding, 'trial')} wait" if outstanding else "nothing is tried"
        left = left.replace("1 trial wait", "1 trial waits")
        how = "has failed" if state is State.FAILED else f"is {state.lower()}"
        return [f"{left}: the search {how}; `dlctl resume {search_id}` goes on"]
    if state is not State.TRAINING:
        return [f"the hub has not begun, it is {state}" + _because(record.reason)]
    found = _brokers(overview)
    running = overview.running or 0
    waiting = outstanding - running
    if waiting <= 0:
        return found
    return found + _workers(overview, search_id, waiting, running)


def _brokers(overview: Overview) -> list[str]:
    if not overview.brokers:
        return ["no broker has reported its tasks yet"]
    late = [(b, overview.now - b.time) for b in overview.brokers if overview.now and b.time]
    return [
        f"the broker {broker.broker} was last heard of {format_span(age_s)} ago"
        for broker, age_s in late if age_s > _SILENT_S
    ]  # fmt: skip


def _workers(overview: Overview, search_id: str, waiting: int, running: int) -> list[str]:
    wait = f"{counted(waiting, 'trial')} {'waits' if waiting == 1 else 'wait'}"
    add = f"`dlctl search scale {search_id} --workers N` sets how many there are"
    pending = [job for job in overview.jobs if job.state == "PENDING"]
    begun = [job for job in overview.jobs if job.lives and job.state != "PENDING"]
    workers = list(overview.workers.values())
    found = [_queue_words(pending)] if pending else []
    if refusal := overview.hub.get("error"):
        found.append(with_id(str(refusal), search_id))
    if overview.queue_problem:
        found.append(f"the scheduler does not answer: {overview.queue_problem}")
    if not workers:
        if begun:
            found.append(
                f"{counted(len(begun), 'worker job')} {'has' if len(begun) == 1 else 'have'} "
                f"begun, and no worker has come to a broker so far; `dlctl logs {search_id}`"
                " shows what they print"
            )
        elif not pending and not overview.queue_problem:
            ended = ", their jobs have ended" if overview.jobs else ""
            found.append(f"no worker is there{ended}; {_yours(overview.spec) or add}")
        return [f"{wait}: {reason}" for reason in found]
    if lacks := what_workers_lack(overview.spec.task, workers):
        found.append(f"no worker can take it: {lacks}")
    elif running:
        found.append(f"all workers are busy, with {counted(running, 'trial')}; {add}")
    return [f"{wait}: {reason}" for reason in found]


def _yours(spec: names.Spec) -> str:
    if spec.workers.most:
        return ""
    return "start your own: search.yml has `workers: {jobs: 0}`"


def _queue_words(pending: Sequence[WorkerJob]) -> str:
    reasons = Counter(job.reason for job in pending)
    reason = reasons.most_common(1)[0][0]
    noun = "worker job" if len(pending) == 1 else "worker jobs"
    verb = "is" if len(pending) == 1 else "are"
    return f"{len(pending)} {noun} {verb} waiting in the queue" + _because(reason)


def what_workers_lack(task: names.Task, workers: Sequence[names.WorkerStatus]) -> str:
    """Return what a trial needs and no worker has; empty if one could run it, now or later."""
    if any(not _lacks(task, worker) for worker in workers):
        return ""
    for worker in workers:
        if len(lacks := _lacks(task, worker)) == 1:
            return f"a trial {lacks[0]}"
    return f"a trial {'; it '.join(_lacks(task, workers[0]))}"


def _lacks(task: names.Task, worker: names.WorkerStatus) -> list[str]:
    found = []
    for need, has, noun in ((task.cpus, worker.cpus, "CPU"), (task.gpus, worker.gpus, "GPU")):
        if need > has:
            found.append(f"needs {counted(need, noun)}, and {worker.name} has {has}")
    if (task.memory_bytes or 0) > worker.memory_bytes:
        found.append(f"needs {format_size(task.memory_bytes or 0)}, and {worker.name} has "
                     f"{format_size(worker.memory_bytes)}")  # fmt: skip
    if labels := sorted(set(task.labels) - set(worker.labels)):
        found.append(f"needs the label {labels[0]!r}, which {worker.name} lacks")
    if task.kind not in (worker.types or ("python", "exec")):
        found.append(f"is of the type {task.kind}, and {worker.name} runs "
                     f"{', '.join(worker.types) or 'python and exec'}")  # fmt: skip
    left_s = worker.seconds_left
    if left_s and task.time_limit_s > left_s:
        found.append(f"may take {format_span(task.time_limit_s)}, and the job of {worker.name} "
                     f"ends in {format_span(left_s)}")  # fmt: skip
    return found


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""
