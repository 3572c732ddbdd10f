"""The state of a search in its model, and how each call changes it. No RPC."""

from __future__ import annotations

import itertools
import math
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dlctl.contract.search import Spec
from search.errors import SearchError
from search.model.log import Event, TrialLog
from search.strategies import Proposal, Strategy, Trial, TrialResult

_HOUR_S = 3600.0
_MOST_ERROR = 1000
_LONGEST_ERROR = 300
ASK, TELL, REPORT = "ask", "tell", "report"
GIVE_UP = "give_up"


class ReplayError(Exception):
    """The strategy does not answer as it did: its code, or a library of its own, has changed.

    Args:
        number: The first trial that differs.
        recorded, asked: What the log has of it, and what the strategy answers now: `point`, and
            `parent` where there is one; None: nothing.
    """

    def __init__(self, spec: Spec, number: int, recorded: Any, proposed: Any) -> None:
        super().__init__(
            f"the strategy {spec.strategy} answers otherwise than it did at trial {number}: it "
            "must depend on its seed, and on what it was told, alone"
        )
        self.number, self.recorded, self.proposed = number, recorded, proposed


class HopelessError(SearchError):
    """Trials fail, and none has ever ended well."""


@dataclass(frozen=True)
class Ended:
    """The end of a trial, as a worker or the broker reports it."""

    outcome: str
    """A name of the protocol's `Outcome`."""
    value: Any = None
    """The return value of the trial's program."""
    metrics: dict[str, float] | None = None
    """The newest report of each name."""
    error: str = ""
    worker: str = ""
    seconds: float = 0.0
    started_at: float = 0.0


class Search:
    """The trials of one search, kept in a log.

    In deterministic mode results reach the strategy in the order of the trials, and a trial is
    asked for only when the one `window` places before it has been told: which trials there are
    depends on neither the workers nor their speed.

    Raises:
        ReplayError: the log holds other points than the strategy's.
    """

    def __init__(
        self, spec: Spec, strategy: Strategy, log: TrialLog,
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.spec = spec
        self._strategy, self._log, self._clock = strategy, log, clock
        self.trials: list[Trial] = []
        self.ids: dict[str, int] = {}
        """Task id → number."""
        self.task_ids: list[str] = []
        """The task ids of the trials, by number."""
        self.outstanding: dict[int, str] = {}
        """Number → task id, of the trials that were asked for and have not ended."""
        self._waiting: dict[int, Event] = {}
        """Deterministic: what has ended before its turn."""
        self._stopped: set[int] = set()
        self.best: tuple[float, int] | None = None
        """The metric, and the trial that had it."""
        self.failed = 0
        self.result_count = 0
        self._in_vain: set[int] = set()
        """The trials that have ended, and not well."""
        self._counted_from = 0
        """Trials before this one may have failed before the program was mended."""
        self._last_failure: Event = {}
        self._starved = False
        """Whether the strategy wants to be told more before it answers."""
        self.used_s = 0.0
        """How long models of this search have run, all together; the driver counts it."""
        self.used_node_s = 0.0
        """How long workers were there, added up over all of them; the driver counts it."""
        for event in log.events():
            self._replay(event)

    def wanted(self, window: int) -> int:
        """Return how many trials to ask for now."""
        if self._starved or self.is_hopeless or self.spent():
            return 0
        free = window - len(self.outstanding)
        if self.spec.deterministic:
            free = window - (len(self.trials) - self.result_count)
        if self.spec.budget.trials is not None:
            free = min(free, self.spec.budget.trials - len(self.trials))
        return max(0, free)

    def look(self) -> None:
        """Look whether this is still the search's model: what another one takes comes never here.

        Raises:
            SearchError: another model has begun.
        """
        self._log.write()

    def spent(self, *, by_trials: bool = True) -> bool:
        """Return whether no more trials may begin.

        Args:
            by_trials: Whether the number of trials counts, or time alone.
        """
        budget = self.spec.budget
        used = ((budget.time_s, self.used_s), (budget.node_hours, self.used_node_s / _HOUR_S))
        is_used_up = any(most is not None and now >= most for most, now in used)
        return is_used_up or (by_trials and self._is_last())

    def is_done(self) -> bool:
        """Return whether nothing is left to do."""
        return not self.outstanding and (self._starved or self.spent())

    @property
    def is_hopeless(self) -> bool:
        """Return whether the first trials have failed, as many as the budget allows.

        A later one that failed sooner does not count: bad points often fail at once, and good ones
        take their time.
        """
        first, most = self._counted_from, self.spec.budget.failures
        is_in_vain = self.best is None and bool(most and self._last_failure)
        return is_in_vain and self._in_vain.issuperset(range(first, first + most))

    def give_up_in_vain(self) -> None:
        """End the search if it is hopeless, or done without a trial that has ended well.

        The log says so, and a search that is resumed counts those that are asked for from there.

        Raises:
            HopelessError
        """
        is_in_vain = self.spec.budget.failures and self.best is None and self.failed
        if not (self.is_hopeless or (is_in_vain and self.is_done())):
            return
        self._log.write({"event": GIVE_UP, "time": self._clock(), **self._used()})
        number = self._last_failure["number"]
        error = " ".join(self._last_failure["error"].split())
        if len(error) > _LONGEST_ERROR:
            error = f"{error[: _LONGEST_ERROR // 2]} … {error[-_LONGEST_ERROR // 2 :]}"
        have = "1 trial has" if self.failed == 1 else f"{self.failed} trials have"
        raise HopelessError(
            f"{have} failed, and none has ended well; the newest, trial {number}: {error}",
            hint=f"`dlctl logs --trial {number}` shows what it printed; "
            "`dlctl resume --code` goes on with your folder as it is now",
        )

    def ask(self, n: int) -> list[Trial]:
        """Return new trials; they are in the log when this returns."""
        first = len(self.trials)
        made = [
            {"number": first + place, "id": secrets.token_hex(16), **proposed}
            for place, proposed in enumerate(self._proposed(n))
        ]
        self._log.write({
            "event": ASK, "time": self._clock(), **self._used(), "n": n, "trials": made,
        })  # fmt: skip
        return self._add_trials(made)

    def _proposed(self, n: int) -> list[dict[str, Any]]:
        """Return what the strategy proposes: `point`, and `parent` where there is one."""
        return [
            {"point": each.point, "parent": each.parent} if isinstance(each, Proposal)
            else {"point": each}
            for each in self._strategy.ask(n)
        ]  # fmt: skip

    def _add_trials(self, made: list[dict[str, Any]]) -> list[Trial]:
        trials = [Trial(each["number"], each["point"], each.get("parent")) for each in made]
        for trial, each in zip(trials, made, strict=True):
            self.trials.append(trial)
            self.ids[each["id"]] = trial.number
            self.task_ids.append(each["id"])
            self.outstanding[trial.number] = each["id"]
        self._starved = not made
        self._tell_in_turn()
        return trials

    def end(self, task_id: str, ended: Ended) -> bool:
        """Take in that a trial has ended; return False if that is known, or no trial of ours."""
        number = self.ids.get(task_id)
        if number is None or number not in self.outstanding:
            return False
        event = {
            "event": TELL, "time": self._clock(), **self._used(), "number": number,
            "outcome": ended.outcome,
            "value": ended.value, "metrics": ended.metrics or {}, "error": ended.error,
            "worker": ended.worker, "seconds": ended.seconds, "started_at": ended.started_at,
        }  # fmt: skip
        event["metric"] = metric_of(self.spec, event)
        if event["metric"] is None and ended.outcome == "SUCCEEDED" and not ended.error:
            event["error"] = _without_metric(self.spec, ended.value)
        self._log.write(clean(event))
        self._heard(event)
        return True

    def _used(self) -> dict[str, float]:
        return {"used_s": self.used_s, "used_node_s": self.used_node_s}

    def _heard(self, event: Event) -> None:
        number = event["number"]
        del self.outstanding[number]
        if not self.spec.deterministic:
            self._tell(event)
            return
        self._waiting[number] = event
        self._tell_in_turn()

    def _tell_in_turn(self) -> None:
        """Deterministic: tell the next result, once all trials that come before it are asked."""
        while self.result_count in self._waiting:
            is_full = len(self.trials) - self.result_count >= self.spec.window
            if not (is_full or self._starved or self._is_last()):
                return
            self._tell(self._waiting.pop(self.result_count))

    def _is_last(self) -> bool:
        trials = self.spec.budget.trials
        return trials is not None and len(self.trials) >= trials

    def _tell(self, event: Event) -> None:
        number = event["number"]
        metric = event["metric"]
        signed = None if metric is None else self._signed(metric)
        self.result_count += 1
        self._starved = False
        if metric is None and event["outcome"] != "CANCELLED":
            self.failed += 1
            self._last_failure = event
        if metric is None:
            self._in_vain.add(number)
        if signed is not None and (self.best is None or signed < self._signed(self.best[0])):
            self.best = (self._signed(signed), number)
        numbers = {k: v for k, v in event["metrics"].items() if isinstance(v, (int, float))}
        result = TrialResult(signed, numbers, number in self._stopped)
        self._strategy.tell(self.trials[number], result)

    def generation(self, trial: Trial) -> int:
        """Return how many trials a trial goes on from, one after the other."""
        count = 0
        while trial.parent is not None:
            trial, count = self.trials[trial.parent], count + 1
        return count

    def _signed(self, metric: float) -> float:
        return -metric if self.spec.maximize else metric

    def report(self, task_id: str, step: int, metrics: dict[str, float]) -> bool:
        """Take in what a running trial says; return whether it goes on."""
        number = self.ids.get(task_id)
        if number is None or number not in self.outstanding or number in self._stopped:
            return False
        value = metrics.get(self.spec.metric)
        if value is None or not math.isfinite(value):
            return True
        goes_on = self._strategy.report(self.trials[number], step, self._signed(value))
        event = {"event": REPORT, "number": number, "step": step, "value": value, "on": goes_on}
        self._log.write(event)
        if not goes_on:
            self._stopped.add(number)
        return goes_on

    def _replay(self, event: Event) -> None:
        self.used_s = max(self.used_s, event.get("used_s", 0.0))
        self.used_node_s = max(self.used_node_s, event.get("used_node_s", 0.0))
        if event["event"] == ASK:
            logged = [
                {key: each[key] for key in ("point", "parent") if key in each}
                for each in event["trials"]
            ]
            first = len(self.trials)
            proposed = self._proposed(event["n"])
            for place, (was, now) in enumerate(itertools.zip_longest(logged, proposed)):
                if was != now:
                    raise ReplayError(self.spec, first + place, was, now)
            self._add_trials(event["trials"])
        elif event["event"] == TELL:
            self._heard(event)
        elif event["event"] == REPORT:
            trial = self.trials[event["number"]]
            if not self._strategy.report(trial, event["step"], self._signed(event["value"])):
                self._stopped.add(trial.number)
        elif event["event"] == GIVE_UP:
            self._counted_from = len(self.trials)


def clean(value: Any) -> Any:
    """Return a value as JSON can hold it: without NaN and infinity."""
    if isinstance(value, dict):
        return {key: clean(each) for key, each in value.items()}
    if isinstance(value, list):
        return [clean(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def metric_of(spec: Spec, event: Event) -> float | None:
    """Return the metric of an ended trial; None: it failed, or has no such finite number.

    A trial that was stopped early has what it reported last.
    """
    value = event["value"]
    if event["outcome"] == "CANCELLED":
        value = event["metrics"]
    elif event["outcome"] != "SUCCEEDED":
        return None
    if isinstance(value, dict):
        value = value.get(spec.metric, event["metrics"].get(spec.metric))
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer beyond all floats
        return None


def _without_metric(spec: Spec, value: Any) -> str:
    """Return what the result is, which has no such metric, in a sentence."""
    has = (
        f"its keys: {', '.join(map(str, value))}" if isinstance(value, dict) else f"it is {value!r}"
    )
    return f"the result has no finite number {spec.metric!r}; {has}"[:_MOST_ERROR]
