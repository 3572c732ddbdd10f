"""Account for the hours of a training: their use, their cost, and the best saving. Pure.

An attempt's hours are those from the start of its job to the end, on all its nodes. The uses of an
attempt add up to exactly that: what no record explains is idle. Waiting in the queue holds no node.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dlctl.contract import State, VerdictKind
from dlctl.contract.metrics import (
    CHECKPOINT_STALL_S,
    DATA_WAIT_S,
    EXCHANGE_S,
    MEMORY_BYTES,
    STEP_S,
    MetricsLine,
)
from dlctl.lifecycle.accounts import AttemptAccount
from dlctl.series.readable import held_span
from dlctl.series.utilisation import Use, sentences

USES = ("starting", "useful", "again", "saving", "data", "exchange", "idle")
WORDS = {
    "starting": "starting", "useful": "useful", "again": "lost to faults",
    "saving": "saving checkpoints", "data": "waiting for data", "exchange": "exchanging",
    "idle": "idle",
}  # fmt: skip
PARTS = {"saving": CHECKPOINT_STALL_S, "data": DATA_WAIT_S, "exchange": EXCHANGE_S}
"""Use → the metric that counts it in a step."""
_VALIDATION = "validation_"
_SPARE_MIB = 256
_WORTH_SAYING = 0.02
"""A change that saves a smaller share is not worth a sentence."""


@dataclass(frozen=True)
class Prices:
    """The cost of an hour."""

    node_hour: float = 0.0
    gpu_hour: float = 0.0
    currency: str = ""


@dataclass(frozen=True)
class Spent:
    """The seconds of one attempt."""

    attempt: int
    nodes: int
    gpus: int
    cpus: int
    queued_s: float
    held_s: float
    uses: dict[str, float]
    """Seconds by use; they sum to `held_s`."""


@dataclass(frozen=True)
class Ledger:
    """The account of a training; hours are of nodes and of GPUs."""

    training_id: str
    attempts: int
    queued_h: float
    """Time in the queue, of all attempts; it holds no node."""
    node_hours: float
    gpu_hours: float
    node_hours_by_use: dict[str, float]
    gpu_hours_by_use: dict[str, float]
    cost: float | None
    currency: str
    memory_asked_bytes: int | None
    """Memory that one learner asked for."""
    memory_used_bytes: int | None
    """The most that any learner has used; if nothing was measured, any task by the accounting."""
    cpus_asked: int
    """CPUs that one learner asked for."""
    cpus_used: float | None
    """CPUs that one learner has used, in the mean over all of them and the whole time."""
    advice: str
    """The change to the manifest that would have saved most."""
    each: list[Spent] = field(default_factory=list)
    cpu_hours: float = 0.0
    """Hours of CPUs that were held, whether or not they were used."""
    gpu_energy_kwh: float | None = None
    """The energy of the GPUs, from their mean power and the hours held; None: not measured."""
    step_shares: Mapping[str, float] = field(default_factory=dict)
    """Part of a step → its share of the step's time."""
    utilisation: list[str] = field(default_factory=list)
    """Sentences on what was used of what was asked for."""


@dataclass(frozen=True)
class Sum:
    """Sums over trainings."""

    key: str
    """The word that they share, such as a tag."""
    trainings: int
    queued_h: float
    node_hours: float
    gpu_hours: float
    cpu_hours: float
    useful_share: float | None
    """Share of the node-hours in which they trained, validation included."""
    gpu_energy_kwh: float | None
    """Of the trainings whose GPUs' power was measured."""
    cost: float | None
    """Of the sites that have a price."""
    currency: str
    """Empty if there are several."""


def summed(key: str, books: Sequence[Ledger]) -> Sum:
    """Return the sums over trainings."""
    node_hours = sum(book.node_hours for book in books)
    useful_h = sum(book.node_hours_by_use["useful"] for book in books)
    energy = [book.gpu_energy_kwh for book in books if book.gpu_energy_kwh is not None]
    costs = [book.cost for book in books if book.cost is not None]
    currencies = {book.currency for book in books if book.cost is not None}
    is_one = len(currencies) == 1
    return Sum(
        key, len(books), sum(book.queued_h for book in books), node_hours,
        sum(book.gpu_hours for book in books), sum(book.cpu_hours for book in books),
        useful_h / node_hours if node_hours else None, sum(energy) if energy else None,
        sum(costs) if is_one else None, next(iter(currencies)) if is_one else "",
    )  # fmt: skip


def ledger(
    training_id: str, attempts: Sequence[AttemptAccount], prices: Prices | None, now: float,
    measured: Use | None = None,
) -> Ledger:  # fmt: skip
    """Return the account of a training.

    Args:
        now: By the site's clock, Unix seconds: the end of what still runs.
        measured: What was measured beside the learners.
    """
    each = _spent(attempts, now)
    nodes_h = {use: sum(a.uses[use] * a.nodes for a in each) / 3600 for use in USES}
    gpus_h = {use: sum(a.uses[use] * a.gpus for a in each) / 3600 for use in USES}
    node_hours, gpu_hours = sum(nodes_h.values()), sum(gpus_h.values())
    cost = None
    if prices is not None:
        cost = node_hours * prices.node_hour + gpu_hours * prices.gpu_hour
    queued_h = sum(a.queued_s for a in each) / 3600
    resources = attempts[-1].plan.resources if attempts else None
    use = _with_accounting(measured or Use(), attempts)
    wanted = resources.memory_bytes_per_learner if resources else None
    used = None if use.memory_bytes is None else int(use.memory_bytes)
    power_w = use.gpu_power_w
    return Ledger(
        training_id, len(each), queued_h, node_hours, gpu_hours, nodes_h, gpus_h, cost,
        prices.currency if prices else "", wanted, used,
        resources.cpus_per_learner if resources else 0, use.cpus,
        advise(nodes_h, queued_h, sum(a.held_s for a in each) / 3600, _limited(attempts), wanted,
               used, has_loop=not attempts or attempts[-1].plan.framework.has_loop),
        each, sum(a.held_s * a.cpus for a in each) / 3600,
        None if power_w is None else power_w * gpu_hours / 1000,
        use.step_shares, sentences(use, resources),
    )  # fmt: skip


# Time --------------------------------------------------------------------------------------------


def _spent(attempts: Sequence[AttemptAccount], now: float) -> list[Spent]:
    found, before_end, before_job, start_step = list[Spent](), 0.0, "", 0
    for this, following in itertools.zip_longest(attempts, attempts[1:]):
        shares_job = bool(this.job_id) and this.job_id == before_job
        ends_job = following is None or following.job_id != this.job_id
        begin, end = _held(this, now, ends_job)
        if begin is None:
            continue  # its job never began
        queued_from = max(this.usage.submitted_at or this.submitted_at or begin, before_end)
        if shares_job:  # unless Slurm ran the job again
            begin = max(before_end, this.usage.started_at or 0.0)
        end = max(begin, end)
        kept = _kept_step(this, following)
        started_at = this.supervisor.started_at if shares_job and this.supervisor else begin
        uses = _uses(this, max(begin, started_at), begin, end, start_step, kept)
        queued_s = max(0.0, begin - queued_from)
        resources = this.plan.resources
        gpus = resources.gpus_per_learner * resources.learners
        cpus = resources.cpus_per_learner * resources.learners
        found.append(Spent(this.attempt, resources.nodes, gpus, cpus, queued_s, end - begin, uses))
        before_end, before_job = end, this.job_id
        last_step = max([start_step, *(line.step for line in this.lines)])
        start_step = last_step if kept is None else kept
    return found


def _held(this: AttemptAccount, now: float, ends_job: bool) -> tuple[float | None, float]:
    """Return when the nodes of an attempt were held, from and to."""
    supervisor, usage, verdict = this.supervisor, this.usage, this.verdict
    begin = usage.started_at or (supervisor.started_at if supervisor else None)
    if begin is not None and supervisor is not None:  # accounting knows a job's last run only
        begin = min(begin, supervisor.started_at)
    own_end = verdict.finished_at if verdict and verdict.finished_at else None
    if own_end is None and supervisor is not None:
        own_end = supervisor.heartbeat_at if supervisor.state.final else None
    if ends_job and usage.ended_at is not None:
        return begin, usage.ended_at
    if own_end is None and not ends_job and supervisor is not None:
        own_end = supervisor.heartbeat_at  # it was killed, and the next one began
    return begin, own_end if own_end is not None else now


def _kept_step(this: AttemptAccount, following: AttemptAccount | None) -> int | None:
    """Return the step after which an attempt's work was lost; None: nothing was."""
    verdict = this.verdict
    if not this.plan.framework.has_loop:
        return None
    if verdict is not None and verdict.state not in (State.FAILED, State.HALTED):
        return None
    if verdict is not None and verdict.state is State.HALTED and verdict.progress < 0:
        return None
    if verdict is not None:
        return max(0, verdict.progress)
    if following is not None and following.lines:  # killed: where the next one went on
        every = max(1, following.plan.training.log_every_steps)
        return max(0, following.lines[0].step - every)
    return None


def _uses(
    this: AttemptAccount, started_at: float, begin: float, end: float, start_step: int,
    kept: int | None,
) -> dict[str, float]:  # fmt: skip
    """Return the seconds by use; they sum to the time held.

    Until `started_at` the attempt waited in a job that it shares for its back-off: idle.
    """
    uses = dict.fromkeys(USES, 0.0)
    held_s = end - begin
    lines = [line for line in this.lines if not line.event]
    if lines:
        _add_lines(uses, lines, started_at, start_step, kept)
    else:
        _add_program(uses, this, started_at, end)
    known_s = sum(uses.values())
    if known_s > held_s:  # clocks differ, or the last line came late
        scale = held_s / known_s if known_s else 0.0
        return {use: value * scale for use, value in uses.items()}
    uses["idle"] = held_s - known_s
    return uses


def _add_lines(
    uses: dict[str, float], lines: Sequence[MetricsLine], begin: float, start_step: int,
    kept: int | None,
) -> None:  # fmt: skip
    step, before_at = min(start_step, lines[0].step - 1), None
    for line in lines:
        count, step_s = max(0, line.step - step), line.values.get(STEP_S) or 0.0
        spent_s = count * step_s
        if before_at is None and line.time is not None:
            uses["starting"] += max(0.0, line.time - spent_s - begin)
        elif (
            before_at is not None
            and line.time is not None
            and any(name.startswith(_VALIDATION) for name in line.values)
        ):
            uses["useful"] += max(0.0, line.time - before_at - spent_s)
        lost = 0.0
        if kept is not None and count:
            lost = min(1.0, max(0, line.step - max(kept, step)) / count)
        uses["again"] += spent_s * lost
        parts = {use: count * (line.values.get(name) or 0.0) for use, name in PARTS.items()}
        shrink = min(1.0, spent_s / sum(parts.values())) if sum(parts.values()) else 0.0
        for use, part_s in parts.items():
            uses[use] += part_s * shrink * (1 - lost)
        uses["useful"] += (spent_s - sum(parts.values()) * shrink) * (1 - lost)
        step, before_at = max(step, line.step), line.time or before_at


def _add_program(uses: dict[str, float], this: AttemptAccount, begin: float, end: float) -> None:
    """Divide the time of a program whose steps are not known, by when it ran and what was lost."""
    learner, verdict = this.learner, this.verdict
    if learner is None:
        uses["starting"] = end - begin
        return
    began = min(max(begin, learner.started_at), end)
    ended = min(end, max(began, learner.heartbeat_at if learner.state.final else end))
    uses["starting"] = began - begin
    lost_s = 0.0
    if verdict is not None and verdict.state is State.FAILED:
        lost_s = min(ended - began, max(0.0, ended - begin - verdict.used_s))
    uses["again"], uses["useful"] = lost_s, ended - began - lost_s


# What was asked for ------------------------------------------------------------------------------


def _with_accounting(measured: Use, attempts: Sequence[AttemptAccount]) -> Use:
    """Return the use; what was not measured, such as of a short job, as the accounting knows it."""
    jobs = {each.job_id: each for each in attempts if each.job_id}
    known = [
        (usage.cpu_s, (usage.ended_at - usage.started_at) * each.plan.resources.learners)
        for each in jobs.values()
        if (usage := each.usage).cpu_s is not None and usage.ended_at and usage.started_at
    ]
    held_s = sum(held for _, held in known)
    memory = [each.usage.memory_bytes or 0 for each in attempts]
    memory += [int(line.values.get(MEMORY_BYTES) or 0) for each in attempts for line in each.lines]
    if measured.cpus is None and held_s:
        measured = replace(measured, cpus=sum(cpu for cpu, _ in known) / held_s)
    if measured.memory_bytes is None:
        measured = replace(measured, memory_bytes=max(memory, default=0) or None)
    return measured


# Advice ------------------------------------------------------------------------------------------


def _limited(attempts: Sequence[AttemptAccount]) -> float:
    """Return the share of the attempts that a time limit ended."""
    ended = [each.verdict for each in attempts if each.verdict]
    by_limit = sum(verdict.kind == VerdictKind.TIME_LIMIT for verdict in ended)
    return by_limit / max(1, len(attempts))


def advise(
    hours: dict[str, float], queued_h: float, held_h: float, limited: float,
    memory_wanted: int | None, memory_used: int | None, *, has_loop: bool = True,
) -> str:  # fmt: skip
    """Return in words the one change to the manifest that would have saved most.

    Args:
        limited: The share of the attempts that a time limit ended.
        has_loop: False: the program decides when it saves, and the manifest does not.
    """
    total = sum(hours.values())
    often, seldom = (
        "`checkpoint: {every: ...}` twice as often",
        "`checkpoint: {every: auto}`, or half",
    )
    if not has_loop:
        saves = hours["useful"] > 0
        often = f"a program that saves {'twice as often' if saves else 'what it has reached'}"
        seldom = "a program that saves half"
    choices = [
        (hours["again"] / 2, often, "again"),
        (hours["saving"] / 2, f"{seldom} as often", "saving"),
        (hours["data"], "more `cpus`, or `training: {prefetch: on}`", "data"),
        (hours["exchange"] * 3 / 4, "`training: {average_every_steps: 4}`, or fewer `learners`",
         "exchange"),
        (hours["starting"] * limited, "a longer `time` per job", "starting"),
    ]  # fmt: skip
    saved, change, use = max(choices)
    if total > 0 and saved >= _WORTH_SAYING * total:
        share = 100 * hours[use] / total
        return (
            f"{change} would have saved about {held_span(3600 * saved)} of a node: {share:.0f} % "
            f"of the node time {'was' if use == 'again' else 'went into'} {WORDS[use]}"
        )
    if memory_wanted and memory_used and memory_wanted > 2 * memory_used:
        enough = _SPARE_MIB * -(-memory_used * 5 // (4 * _SPARE_MIB * 2**20))
        if enough * 2**20 < memory_wanted:
            return f"`memory: {enough}MiB` would have been enough, and such jobs start earlier"
    if queued_h > held_h:
        return "a shorter `time` or fewer `nodes` would have started earlier: it waited longest"
    return "no change would have saved more than 2 %"
