"""Read the trials of a search from the model's log."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dlctl.contract import search as names
from dlctl.errors import NoSuch, RecordError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class TrialRow:
    """One trial."""

    number: int
    id: str
    """The id of its task: `search/tasks/<id>` holds what its program printed."""
    point: dict[str, Any]
    outcome: str = ""
    """Empty: it has not ended."""
    metric: float | None = None
    error: str = ""
    worker: str = ""
    seconds: float = 0.0
    asked_at: float = 0.0
    started_at: float = 0.0
    """When its last run began, by the worker's clock; 0 if nobody ran it."""
    ended_at: float = 0.0
    """Unix seconds, as the others."""
    parent: int | None = None
    """The trial from whose checkpoint it goes on."""

    @property
    def failed(self) -> bool:
        """Return whether it has ended without a metric, and was not withdrawn."""
        return self.outcome not in ("", "CANCELLED") and self.metric is None

    @property
    def outcome_words(self) -> str:
        """Return how it ended, in words."""
        return self.outcome.lower().replace("_", " ") or "outstanding"


@dataclass(frozen=True)
class Best:
    """A trial that was better than all that had ended before it."""

    ended: int
    """How many trials had ended by then, this one among them."""
    time: float
    """Unix seconds."""
    number: int
    metric: float


@dataclass(frozen=True)
class Trials:
    """A search and its trials, in the order in which they were asked for."""

    spec: names.Spec
    rows: Sequence[TrialRow]
    reports: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    """Trial → the steps and values of the metric that it has reported."""
    order: Sequence[int] = ()
    """The trials that have ended, in the order of their ends."""
    used_s: float = 0.0
    """How long the search's models had run when the last event was written."""
    used_node_s: float = 0.0
    """How long workers had been there, added up over all of them."""
    last_event_at: float = 0.0

    @property
    def ended(self) -> list[TrialRow]:
        """Return the trials that have ended."""
        return [row for row in self.rows if row.outcome]

    @property
    def outstanding(self) -> int:
        """Return how many trials have been asked for and have not ended."""
        return len(self.rows) - len(self.order)

    @property
    def best(self) -> TrialRow | None:
        """Return the best trial; of equals the first one."""
        with_metric = [row for row in self.rows if row.metric is not None]
        return min(
            with_metric, key=lambda row: (self._sign * (row.metric or 0), row.number), default=None
        )

    @property
    def newest_failure(self) -> TrialRow | None:
        """Return the trial that has failed last, of those that say why."""
        failed = (self.rows[number] for number in reversed(self.order))
        return next((row for row in failed if row.failed and row.error), None)

    def find(self, number: int) -> TrialRow:
        """Return one trial.

        Raises:
            RecordError: there is none of this number.
        """
        if not 0 <= number < len(self.rows):
            has = f"the trials 0 to {len(self.rows) - 1}" if self.rows else "no trial so far"
            raise NoSuch(f"there is no trial {number}: the search has {has}",
                              hint="`dlctl search trials ID` lists them")  # fmt: skip
        return self.rows[number]

    def best_over_time(self) -> list[Best]:
        """Return each trial that was better than all that had ended before it."""
        found: list[Best] = []
        for ended, number in enumerate(self.order, 1):
            row = self.rows[number]
            if row.metric is None:
                continue
            if not found or self._sign * row.metric < self._sign * found[-1].metric:
                found.append(Best(ended, row.ended_at, number, row.metric))
        return found

    @property
    def _sign(self) -> int:
        return -1 if self.spec.maximize else 1


class TrialLog:
    """The trials that a log holds, as it grows.

    Args:
        name: of the log, for messages.
    """

    def __init__(self, name: str = names.TRIALS) -> None:
        self._name = name
        self.size_bytes = 0
        """How much of the log was read."""
        self._rest = b""
        self._lines = 0
        self._damage: RecordError | None = None
        self.rows: list[TrialRow] = []
        self.reports: dict[int, list[tuple[int, float]]] = {}
        self.order: list[int] = []
        self.used_s = self.used_node_s = 0.0
        self.last_event_at = 0.0
        self._newest = names.Newest()

    def feed(self, content: bytes) -> None:
        """Take in the next bytes; a last line without its end waits for the rest.

        Raises:
            RecordError: a line is no event of a search, or was none earlier.
        """
        if self._damage is not None:
            raise self._damage
        self.size_bytes += len(content)
        *lines, self._rest = (self._rest + content).split(b"\n")
        for line in lines:
            self._lines += 1
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
                self._damage = RecordError(
                    f"{self._name}: line {self._lines} is no event of a search "
                    f"({type(error).__name__}: {error})",
                    hint="the file is damaged, or a newer dlctl has written it",
                )
                raise self._damage from error

    def _take(self, event: dict[str, Any]) -> None:
        if not self._newest.counts(event):
            return
        self.used_s = max(self.used_s, event.get("used_s") or 0.0)
        self.used_node_s = max(self.used_node_s, event.get("used_node_s") or 0.0)
        self.last_event_at = event.get("time") or self.last_event_at
        kind = event["event"]
        if kind == "ask":
            at = event.get("time", 0.0)
            self.rows += [
                TrialRow(t["number"], t["id"], t["point"], asked_at=at, parent=t.get("parent"))
                for t in event["trials"]
            ]
        elif kind == "tell":
            number = event["number"]
            self.rows[number] = replace(
                self.rows[number], outcome=event["outcome"], metric=event["metric"],
                error=event["error"], worker=event["worker"], seconds=event["seconds"],
                started_at=event.get("started_at", 0.0), ended_at=event["time"],
            )  # fmt: skip
            self.order.append(number)
        elif kind == "report":
            self.reports.setdefault(event["number"], []).append((event["step"], event["value"]))

    def trials(self, spec: names.Spec) -> Trials:
        """Return what is known now; it does not change when more is read."""
        return Trials(spec, list(self.rows), dict(self.reports), list(self.order), self.used_s,
                      self.used_node_s, self.last_event_at)  # fmt: skip
