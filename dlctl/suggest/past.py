"""What one attempt of a training has used: the evidence that suggestions rest on. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from dlctl.contract import State
from dlctl.contract.measured.utilisation import (
    CGROUP_MEMORY_BYTES,
    CPU_PERCENT,
    MEMORY_RSS_BYTES,
    maximum,
)
from dlctl.contract.metrics import (
    EXCHANGE_S,
    MEMORY_BYTES,
    SECONDS,
    STEP_S,
    EventKind,
    MetricsLine,
)
from dlctl.lifecycle.accounts import AttemptAccount
from dlctl.outputs.ledger import Spent, ledger

HIGH = 0.95
"""The quantile that stands for "nearly always enough"."""
_BUSY_PERCENT = 5.0
"""A GPU that is less busy in the mean is idle."""
_GPU = re.compile(r"gpu\d+_percent")


@dataclass(frozen=True)
class Past:
    """What one attempt asked for and used; None: nobody knows."""

    training_id: str
    attempt: int
    name: str
    code_digest: str
    job_id: str
    """Attempts may share a job."""
    site: str
    partition: str
    learners: int
    nodes: int
    gpus: int
    """GPUs, CPUs and memory are those of one learner, here and below."""
    cpus: int
    memory_asked_bytes: int | None
    epochs: int
    batch_size: int
    state: str = ""
    """That of the verdict; empty if there is none yet."""
    kind: str = ""
    """The verdict's `VerdictKind`."""
    queued_s: float = 0.0
    held_s: float = 0.0
    """From the start of its job to the end."""
    start_s: float = 0.0
    """From the start of its job to the first step."""
    store_s: float = 0.0
    """From the last line of metrics to the end of the job."""
    memory_bytes: int | None = None
    """The peak of any learner, as far as it was measured."""
    cpus_used: float | None = None
    """Nearly always enough, or else the mean."""
    gpus_used: int | None = None
    """How many GPUs of learner 0 were busy."""
    step_s: float | None = None
    """Nearly always enough for a step."""
    steps: int = 0
    epoch_samples: float | None = None
    """Samples of one epoch, if the built-in loop has done all of its epochs."""
    exchange_share: float | None = None
    """Share of a step in which the learners exchange."""
    save_s: float | None = None
    """How long training stops for a checkpoint, in the mean."""
    validation_s: float | None = None

    @property
    def token(self) -> str:
        """Return what tells the attempt from others."""
        return f"{self.training_id}.{self.attempt}"

    @property
    def is_telling(self) -> bool:
        """Return whether it came so far that its use of memory, CPUs and GPUs says something."""
        return self.steps > 0 or self.state in (State.COMPLETED, State.HALTED)

    @property
    def is_over(self) -> bool:
        """Return whether nothing more will become known about the attempt."""
        return bool(self.state)


def quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile, interpolated between the nearest two values; there is at least one."""
    known = sorted(values)
    at = share * (len(known) - 1)
    low = int(at)
    high = min(low + 1, len(known) - 1)
    return known[low] + (known[high] - known[low]) * (at - low)


def pasts(training_id: str, attempts: Sequence[AttemptAccount], now: float) -> list[Past]:
    """Return what the attempts of a training have used; one whose job never began has no past.

    Args:
        now: Unix seconds: the end of what still runs.
    """
    spent = {each.attempt: each for each in ledger(training_id, attempts, None, now).each}
    return [_past(training_id, each, spent[each.attempt]) for each in attempts
            if each.attempt in spent]  # fmt: skip


def _past(training_id: str, this: AttemptAccount, spent: Spent) -> Past:
    plan, asked, verdict = this.plan, this.plan.resources, this.verdict
    lines = [line for line in this.lines if not line.event]
    steps = max([0, *(line.step for line in lines)])
    whole = verdict is not None and verdict.state is State.COMPLETED and plan.framework.has_loop
    reached = max([0, *(line.epoch or 0 for line in lines)])
    whole = whole and reached == plan.training.epochs and steps > 0
    step_s = _all(lines, STEP_S)
    return Past(
        training_id=training_id, attempt=this.attempt, name=plan.name,
        code_digest=plan.code_digest, job_id=this.job_id,
        site=plan.site, partition=plan.batch.partition or "",
        learners=asked.learners, nodes=asked.nodes, gpus=asked.gpus_per_learner,
        cpus=asked.cpus_per_learner, memory_asked_bytes=asked.memory_bytes_per_learner,
        epochs=plan.training.epochs if plan.framework.has_loop else 0,
        batch_size=plan.training.batch_size,
        state=str(verdict.state) if verdict else "", kind=verdict.kind if verdict else "",
        queued_s=spent.queued_s, held_s=spent.held_s, start_s=spent.uses["starting"],
        store_s=_store_s(this, spent, lines),
        memory_bytes=_memory_bytes(this),
        cpus_used=_cpus_used(this), gpus_used=_gpus_used(this),
        step_s=quantile(step_s, HIGH) if step_s else None, steps=steps,
        epoch_samples=steps * plan.training.batch_size / reached if whole else None,
        exchange_share=_exchange_share(lines),
        save_s=_event_s(this.lines, EventKind.CHECKPOINT),
        validation_s=_event_s(this.lines, EventKind.VALIDATION),
    )  # fmt: skip


def _store_s(this: AttemptAccount, spent: Spent, lines: Sequence[MetricsLine]) -> float:
    begin = this.usage.started_at or (this.supervisor.started_at if this.supervisor else None)
    last = max((line.time for line in lines if line.time is not None), default=None)
    if begin is None or last is None:
        return 0.0
    return min(spent.held_s, max(0.0, begin + spent.held_s - last))


def _memory_bytes(this: AttemptAccount) -> int | None:
    """Return the largest peak that anybody has measured of a learner.

    Accounting knows every task, but samples rarely; the kernel knows the job on learner 0's node.
    """
    on_node = max(this.plan.resources.learners_per_node, default=1)
    own = [*_all(this.lines, MEMORY_BYTES), *_all(this.beside, maximum(MEMORY_RSS_BYTES))]
    shared = [each / on_node for each in _all(this.beside, maximum(CGROUP_MEMORY_BYTES))]
    return int(max([this.usage.memory_bytes or 0, *own, *shared])) or None


def _cpus_used(this: AttemptAccount) -> float | None:
    if sampled := _all(this.beside, CPU_PERCENT):
        return quantile(sampled, HIGH) / 100
    usage = this.usage
    if usage.cpu_s is None or not usage.ended_at or not usage.started_at:
        return None
    held_s = usage.ended_at - usage.started_at
    return usage.cpu_s / held_s / this.plan.resources.learners if held_s > 0 else None


def _gpus_used(this: AttemptAccount) -> int | None:
    names = {name for line in this.beside for name in line.values if _GPU.fullmatch(name)}
    busy = [fmean(_all(this.beside, name)) >= _BUSY_PERCENT for name in names]
    return sum(busy) if busy else None


def _exchange_share(lines: Iterable[MetricsLine]) -> float | None:
    known = [(line.values[EXCHANGE_S], line.values[STEP_S]) for line in lines
             if line.values.get(EXCHANGE_S) is not None and line.values.get(STEP_S)]  # fmt: skip
    whole_s = sum(step for _, step in known if step)
    return sum(part for part, _ in known if part) / whole_s if whole_s else None


def _event_s(lines: Iterable[MetricsLine], kind: EventKind) -> float | None:
    known = _all([line for line in lines if line.kind == kind.value], SECONDS)
    return fmean(known) if known else None


def _all(lines: Iterable[MetricsLine], name: str) -> list[float]:
    return [value for line in lines if (value := line.values.get(name)) is not None]
