"""Read how earlier attempts have ended, how far the training has come, and what it has used."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from dlctl import contract
from dlctl.contract import Directive, Plan, State, Status, Verdict, VerdictKind
from dlctl.contract.measured.past import HIGH, LearnerUse, Past, quantile
from dlctl.contract.metrics import (
    EXCHANGE_S,
    MEMORY_BYTES,
    SECONDS,
    STEP_S,
    EventKind,
    MetricsLine,
    parse_lines,
)
from learner.checkpoint_files.layout import directory_name, steps_present
from learner.frameworks.own_checkpoints import newest
from learner.job.directives import is_there
from learner.job.guards import read_stopped
from learner.job.outcome import is_hub

_MOST_FILES = 10_000
_MOST_BYTES = 4 << 20
"""The most of learner 0's metrics to read: the beginning and the newest lines tell enough."""
_MOST = 50
"""Attempts whose past a verdict carries: the newest."""
_SILENT_S = 30.0
"""A supervisor that has written no heartbeat for so long has ended."""


def verdicts_before(job_dir: Path, attempt: int) -> list[Verdict]:
    """Return the verdicts of the attempts before this one; those without any are left out."""
    found = []
    for number in range(1, attempt):
        verdict = contract.readable_record(Verdict, job_dir / contract.verdict_file(number))
        found += [verdict] if verdict else []
    return found


def trained(job_dir: Path, plan: Plan, before: int) -> tuple[int, Verdict] | None:
    """Return the newest attempt that has trained this code to its end, and its verdict, or None.

    Only storing is left after such an attempt. If an attempt after it has run other code, the
    results are no longer those of this code.

    Args:
        before: the attempt of which the earlier ones are asked.
    """
    for attempt in range(before - 1, 0, -1):
        if not (job_dir / contract.status_file(attempt, "supervisor", 0)).exists():
            continue  # it never began
        try:
            done = contract.read_record(Verdict, job_dir / contract.trained_file(attempt))
            ran = contract.read_record(Plan, job_dir / contract.plan_file(attempt))
        except (contract.ContractError, OSError):
            return None
        if ran is None or ran.code_digest != plan.code_digest:
            return None
        if ran.training.epochs < plan.training.epochs:
            return None  # `dlctl resume --epochs` asks for more
        if done is not None:
            return attempt, done
    return None


def is_asked_to_end(job_dir: Path) -> bool:
    """Return whether a person has asked to halt or to cancel the training."""
    names = (contract.HALT_REQUEST, contract.CANCEL_REQUEST)
    return any(is_there(job_dir / name) for name in names)


def measured(
    job_dir: Path, plan: Plan, verdict: Verdict, before: Sequence[Verdict]
) -> Verdict:  # fmt: skip
    """Return a verdict with how far its attempt has come, and what it and those before have used.

    Args:
        before: the verdicts of the attempts before this one.
    """
    own = None if plan.framework.has_loop else plan.checkpoint.files
    mark, written_at = newest_checkpoint(job_dir, own)
    supervisor = _status(job_dir, verdict.attempt, "supervisor", 0)
    began_at = supervisor.started_at
    ended_at = verdict.finished_at or time.time()
    if verdict.state is State.FAILED:  # what was done after the checkpoint is lost
        ended_at = max(began_at, min(ended_at, written_at))
    ranks = range(plan.resources.learners)
    statuses = [_status(job_dir, verdict.attempt, "learner", rank) for rank in ranks]
    steps = [each.step for each in [supervisor, *statuses] if each.step is not None]
    if stopped := read_stopped(job_dir, verdict.attempt):  # watchdogs may die before they tell
        steps.append(stopped.step)
    verdict = replace(
        verdict, progress=mark, step=max(steps, default=-1),
        used_s=max(0.0, ended_at - began_at) if began_at else 0.0,
    )  # fmt: skip
    return with_past(job_dir, plan, verdict, before, supervisor, statuses)


def halting_s(job_dir: Path, plan: Plan, attempt: int) -> float | None:
    """Return how long the newest attempt before this one that was halted took to save and end.

    For programs that report no times of their own. If the learners were killed while they still
    saved, it is the time that they were given, and at least the plan's margin: saving takes longer.
    None: none was halted, or it can't be read.
    """
    for number in range(attempt - 1, 0, -1):
        directive = contract.readable_record(Directive, job_dir / contract.directive_file(number))
        if directive is None or directive.action != "halt":
            continue
        ranks = range(plan.resources.learners)
        ended = [_status(job_dir, number, "learner", rank) for rank in ranks]
        if all(status.state is State.HALTED for status in ended):
            return max(status.heartbeat_at for status in ended) - directive.issued_at
        if all(status.state is not State.DEPLOYING for status in ended):
            return max(directive.grace_s, float(plan.resources.halt_margin_s or 0))
    return None


def newest_checkpoint(job_dir: Path, pattern: str | None = None) -> tuple[int, float]:
    """Return how far the newest checkpoint is, and when it was written, in Unix seconds.

    The first is the step of a checkpoint of the built-in loop, or of a program's own by its
    pattern, or else when a program last wrote to CHECKPOINT_DIR, in Unix seconds; -1 without any.
    """
    root = job_dir / contract.CHECKPOINTS
    with contextlib.suppress(OSError):
        if steps := steps_present(root):
            return steps[0], (root / directory_name(steps[0])).stat().st_mtime
        if pattern is not None and (own := newest(root, pattern)) is not None:
            return int(own.written_at) if own.step is None else own.step, own.written_at
        if newest_s := _newest_s(root):
            return int(newest_s), newest_s
    return -1, 0.0


def _newest_s(root: Path) -> float:
    """Return when anything below a folder was last written, in Unix seconds; 0 if it is empty.

    A file that is overwritten leaves its folder's time as it is. Hidden names are temporary.
    """
    newest_s, looked = 0.0, 0
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name[:1] != "."]
        for name in [*folders, *files]:
            if name[:1] != ".":
                with contextlib.suppress(FileNotFoundError):
                    newest_s = max(newest_s, Path(folder, name).lstat().st_mtime)
        looked += len(files)
        if looked > _MOST_FILES:
            break
    return newest_s


def _status(job_dir: Path, attempt: int, role: str, rank: int) -> Status:
    path = job_dir / contract.status_file(attempt, role, rank)
    return contract.readable_record(Status, path) or Status(role, rank, attempt, State.DEPLOYING)


def with_past(
    job_dir: Path, plan: Plan, verdict: Verdict, before: Sequence[Verdict],
    supervisor: Status, learners: Sequence[Status],
) -> Verdict:  # fmt: skip
    """Return the verdict with what this attempt and those before it have used.

    Args:
        before: the verdicts of earlier attempts.
    """
    pasts = next((each.pasts for each in reversed(before) if each.pasts), [])
    if supervisor.started_at and not is_hub(plan):  # a hub's use says nothing of a training
        with contextlib.suppress(Exception):  # whatever has been written, the verdict comes
            pasts = [*pasts, _past(job_dir, plan, verdict, supervisor, learners)]
    return replace(verdict, pasts=pasts[-_MOST:])


def _past(
    job_dir: Path, plan: Plan, verdict: Verdict, supervisor: Status, learners: Sequence[Status]
) -> Past:  # fmt: skip
    resources, n, begun_at = plan.resources, verdict.attempt, supervisor.started_at
    every = list(parse_lines(_ends_of(job_dir / contract.metrics_file(n, 0))))
    lines = [line for line in every if not line.event]
    times = [line.time for line in lines if line.time is not None]
    ended_at = max(begun_at, min(verdict.finished_at, supervisor.heartbeat_at + _SILENT_S))
    steps = max([0, verdict.step, *(line.step for line in lines)])
    reached = max([0, *(line.epoch or 0 for line in lines)])
    has_loop, epochs = plan.framework.has_loop, plan.training.epochs
    whole = verdict.state is State.COMPLETED and has_loop and steps and reached == epochs
    step_s = _all(lines, STEP_S)
    uses = [use for status in learners if (use := contract.readable_record(
        LearnerUse, job_dir / contract.use_file(n, status.rank)))]  # fmt: skip
    return Past(
        training_id=plan.training_id, attempt=n, name=plan.name, code_digest=plan.code_digest,
        job_id=verdict.job_id, site=plan.site, partition=plan.batch.partition or "",
        learners=resources.learners, nodes=resources.nodes, gpus=resources.gpus_per_learner,
        cpus=resources.cpus_per_learner, memory_asked_bytes=resources.memory_bytes_per_learner,
        epochs=epochs if has_loop else 0, batch_size=plan.training.batch_size,
        state=str(verdict.state), kind=verdict.kind, is_rehearsal=plan.rehearsal is not None,
        queued_s=_queued_s(job_dir, n, begun_at), held_s=ended_at - begun_at,
        start_s=max(0.0, min(times) - max([0.0, *step_s[:1]]) - begun_at) if times else 0.0,
        store_s=max(0.0, ended_at - max(times)) if times else 0.0,
        memory_bytes=_memory_bytes(plan, verdict, uses, [*_all(lines, MEMORY_BYTES), *(
            status.metrics.get(MEMORY_BYTES) or 0.0 for status in learners)]),
        cpus_used=max((use.cpus for use in uses if use.cpus is not None), default=None),
        gpus_used=max((gpus for use in uses if (gpus := use.busy_gpus) is not None), default=None),
        step_s=quantile(step_s, HIGH) if step_s else None, steps=steps,
        epoch_samples=steps * plan.training.batch_size / reached if whole else None,
        exchange_share=_exchange_share(lines),
        save_s=_event_s(every, EventKind.CHECKPOINT),
        validation_s=_event_s(every, EventKind.VALIDATION),
    )  # fmt: skip


def _ends_of(path: Path) -> bytes:
    """Return a file, of a large one the beginning and the end; nothing if it can't be read."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        first = file.read(_MOST_BYTES // 2)
        left = path.stat().st_size - len(first)
        if left <= _MOST_BYTES // 2:
            return first + file.read()
        file.seek(-_MOST_BYTES // 2, 2)
        return first.rpartition(b"\n")[0] + b"\n" + file.read().partition(b"\n")[2]
    return b""


def _queued_s(job_dir: Path, attempt: int, begun_at: float) -> float:
    with contextlib.suppress(OSError):
        submitted_at = (job_dir / contract.submit_begin(attempt)).stat().st_mtime
        return max(0.0, begun_at - submitted_at)
    return 0.0


def _memory_bytes(
    plan: Plan, verdict: Verdict, uses: Iterable[LearnerUse], peaks: Iterable[float]
) -> int | None:
    """Return the largest peak that anybody has measured of a learner.

    The job's memory on a node is for as many learners as the fullest node has. What the learners'
    processes share counts in each of them, so together they seem to take more than they may: where
    the kernel holds the limit, nobody took more than that.
    """
    on_node = max(plan.resources.learners_per_node, default=1)
    most, is_held = int(max(peaks, default=0)), False
    for use in uses:
        is_held = is_held or use.job_memory_bytes > 0
        most = max(most, use.memory_bytes, use.job_memory_bytes // on_node)
    limit = plan.resources.memory_bytes_per_learner
    if is_held and limit is not None and verdict.kind != VerdictKind.OUT_OF_MEMORY:
        most = min(most, limit)
    return most or None


def _exchange_share(lines: Iterable[MetricsLine]) -> float | None:
    known = [line for line in lines if _all([line], EXCHANGE_S) and _all([line], STEP_S)]
    whole_s = sum(_all(known, STEP_S))
    return sum(_all(known, EXCHANGE_S)) / whole_s if whole_s else None


def _event_s(lines: Iterable[MetricsLine], kind: EventKind) -> float | None:
    known = _all([line for line in lines if line.kind == kind.value], SECONDS)
    return fmean(known) if known else None


def _all(lines: Iterable[MetricsLine], name: str) -> list[float]:
    return [value for line in lines
            if (value := line.values.get(name)) is not None and math.isfinite(value)]  # fmt: skip
