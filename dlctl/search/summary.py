"""Sum up a search: its trials by state, the rest of its budget. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dlctl.contract import State
from dlctl.contract.search import ARGUMENTS, BrokerStatus, Spec
from dlctl.search.importance import Importance, importances
from dlctl.search.overview import Overview, WorkerJob
from dlctl.search.trials import Best, TrialRow
from dlctl.search.waits import why_trials_wait
from dlctl.series.readable import held_span
from dlctl.units import counted, format_span

if TYPE_CHECKING:
    from dlctl.record import Record
    from dlctl.search.trials import Trials

_PACE_OF = 20
"""The pace is that of so many of the newest trials."""
_WIDEST = 60
_HOUR_S = 3600.0


@dataclass(frozen=True)
class Left:
    """The rest of a search's budget; None: it is not limited, or not known."""

    trials: int | None = None
    """Trials that may still end; some may run already."""
    time_s: float | None = None
    node_hours: float | None = None
    likely_s: float | None = None
    """The time for the trials that are left, at the pace of the newest ones."""

    @property
    def words(self) -> str:
        """Return it in words; empty if nothing is known."""
        parts = [
            "" if self.trials is None else counted(self.trials, "trial"),
            "" if self.time_s is None else f"{format_span(self.time_s)} of the hub's time",
            "" if self.node_hours is None else f"{held_span(3600 * self.node_hours)} of nodes",
        ]
        text = ", ".join(filter(None, parts))
        if text and self.likely_s is not None:
            text += f"; likely done in {format_span(self.likely_s)}"
        return text


def left_of(overview: Overview, record: Record) -> Left:
    """Return what is left of a search's budget."""
    trials, budget = overview.trials, overview.spec.budget
    count = None if budget.trials is None else max(0, budget.trials - len(trials.order))
    time_s = None
    if budget.time_s is not None:
        used_s = trials.used_s
        if record.state is State.TRAINING and overview.now and trials.last_event_at:
            used_s += max(0.0, overview.now - trials.last_event_at)
        time_s = max(0.0, budget.time_s - used_s)
    node_hours = None
    if budget.node_hours is not None:
        node_hours = max(0.0, budget.node_hours - trials.used_node_s / _HOUR_S)
    likely_s = None
    if count and record.state is State.TRAINING and (pace_s := _pace_s(trials)) is not None:
        likely_s = count * pace_s
        if time_s is not None:
            likely_s = min(likely_s, time_s)
    return Left(count, time_s, node_hours, likely_s)


def _pace_s(trials: Trials) -> float | None:
    """Return how many seconds lie between the ends of two trials, of the newest ones."""
    newest = [trials.rows[number].ended_at for number in trials.order[-_PACE_OF:]]
    if len(newest) < 3:
        return None
    return max(0.0, newest[-1] - newest[0]) / (len(newest) - 1)


@dataclass(frozen=True)
class Counts:
    """The progress of a search."""

    trials: int
    ended: int
    running: int | None
    """None: the hub has ended, or nobody has told."""
    failed: int
    budget: int | None
    best: TrialRow | None
    waits: list[str]
    left: Left


@dataclass(frozen=True)
class Whole(Counts):
    """All about a search but its single trials."""

    spec: Spec
    importance: list[Importance]
    best_over_time: list[Best]
    workers: list[WorkerJob]
    brokers: list[BrokerStatus]
    scheduler_problem: str


def counts(overview: Overview, record: Record) -> Counts:
    """Return how many trials there are, by their states, and the best one."""
    found = overview.trials
    return Counts(
        len(found.rows), len(found.order), overview.running, sum(row.failed for row in found.rows),
        found.spec.budget.trials, found.best, why_trials_wait(overview, record),
        left_of(overview, record),
    )  # fmt: skip


def whole(overview: Overview, record: Record) -> Whole:
    """Return all about a search but its single trials."""
    return Whole(
        **vars(counts(overview, record)), spec=overview.spec, importance=importance_of(overview),
        best_over_time=overview.trials.best_over_time(), workers=overview.jobs,
        brokers=overview.brokers, scheduler_problem=overview.queue_problem,
    )  # fmt: skip


def importance_of(overview: Overview) -> list[Importance]:
    """Return how much each parameter explains alone, the most important one first."""
    spec = overview.spec
    return importances(spec.space, overview.trials.ended, maximize=spec.maximize)


def count_words(overview: Overview) -> str:
    """Return the trials by state: `15 of 40 ended, 1 failed, 8 outstanding (2 of them run)`."""
    rows, ended = overview.trials.rows, len(overview.trials.order)
    budget = overview.spec.budget.trials
    of, outstanding = f" of {budget}" if budget else "", len(rows) - ended
    text = f"{ended}{of} ended, {sum(row.failed for row in rows)} failed, {outstanding} outstanding"
    if outstanding and overview.running is not None and not overview.is_over:
        text += f" ({overview.running} of them run)"
    return text


def result_words(found: Trials) -> dict[str, str]:
    """Return the best trial in words, and why the newest of those that failed has."""
    newest = found.newest_failure
    why = f"trial {newest.number}: {newest.error}" if newest and found.best else ""
    return {"best": best_words(found), "newest failure": why}


def best_words(found: Trials) -> str:
    """Return the best trial in words; where there is none, why the newest trial has failed."""
    row = found.best
    if row is None or row.metric is None:
        newest = found.newest_failure
        why = f"; trial {newest.number} failed: {newest.error}" if newest else ""
        return "no trial has ended well so far" + why
    return f"{found.spec.metric} {row.metric:.6g} (trial {row.number}: {point_words(row.point)})"


def strategy_words(overview: Overview) -> str:
    """Return the strategy with its options: `genetic, population 8, seed 1, deterministic`."""
    spec = overview.spec
    options = [f"{name} {value}" for name, value in spec.options.items()]
    mode = f"deterministic in a window of {spec.window}" if spec.deterministic else ""
    return ", ".join(filter(None, [spec.strategy, *options, f"seed {spec.seed}", mode]))


def metric_words(row: TrialRow) -> str:
    """Return a trial's metric with six digits, or `-`."""
    return "-" if row.metric is None else f"{row.metric:.6g}"


def point_words(point: dict[str, Any], widest: int = _WIDEST) -> str:
    """Return a point in one line: `lr=0.0044 layers=4`; too long a one is cut.

    The arguments of a training stand without `framework.arguments.`.
    """
    short = {name.removeprefix(ARGUMENTS): value for name, value in point.items()}
    words = (f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
             for name, value in short.items())  # fmt: skip
    text = " ".join(words)
    return text if len(text) <= widest else f"{text[: widest - 1]}…"
