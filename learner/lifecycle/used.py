"""What an attempt has used, for its verdict: read from what its processes have written."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from dlctl import contract
from dlctl.contract import Plan, State, Status, Verdict, VerdictKind
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
from learner.job.outcome import is_hub

_MOST_BYTES = 4 << 20
"""Of learner 0's metrics: the beginning and the newest lines tell enough, whatever their number."""
_MOST = 50
"""Attempts whose past a verdict carries: the newest."""
_SILENT_S = 30.0
"""A supervisor that has written no heartbeat for so long has ended."""


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
    asked, n, begun_at = plan.resources, verdict.attempt, supervisor.started_at
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
        learners=asked.learners, nodes=asked.nodes, gpus=asked.gpus_per_learner,
        cpus=asked.cpus_per_learner, memory_asked_bytes=asked.memory_bytes_per_learner,
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
        asked_at = (job_dir / contract.submit_begin(attempt)).stat().st_mtime
        return max(0.0, begun_at - asked_at)
    return 0.0


def _memory_bytes(
    plan: Plan, verdict: Verdict, uses: Iterable[LearnerUse], told: Iterable[float]
) -> int | None:
    """Return the largest peak that anybody has measured of a learner.

    The job's memory on a node is for as many learners as the fullest node has. What the learners'
    processes share counts in each of them, so together they seem to take more than they may: where
    the kernel holds the limit, nobody took more than that.
    """
    on_node = max(plan.resources.learners_per_node, default=1)
    most, is_held = int(max(told, default=0)), False
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
