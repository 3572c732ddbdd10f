"""A task that a broker keeps, its needs, and the room at whoever takes tasks. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from search.protocol import messages as m

OUR_TYPES = ("python", "exec")
"""The types of tasks that a worker runs unless it names its own."""


class Shape(NamedTuple):
    """The needs of a task."""

    cpus: int
    gpus: int
    memory_bytes: int
    labels: tuple[str, ...]
    time_limit_s: float
    type: str
    suspect: bool = False
    """A worker died that held it and may have run it: it waits at no worker any more."""

    @classmethod
    def of(cls, task: m.Task) -> Shape:
        """Return the shape of a task."""
        needs = task.needs
        return cls(
            needs.cpus,
            needs.gpus,
            needs.memory_bytes,
            tuple(needs.labels),
            task.time_limit_s,
            task.type,
        )


@dataclass
class Room:
    """The room that a worker or a broker has for tasks."""

    cpus: int
    gpus: int
    memory_bytes: int
    labels: frozenset[str]
    seconds_left: float
    """0: no limit is known."""
    for_each: bool = False
    """Each task alone must fit: tasks take nothing from it."""
    ahead: bool = False
    """Tasks wait there before they begin."""
    types: Collection[str] = OUR_TYPES

    @classmethod
    def of(
        cls,
        free: m.Needs,
        request: m.ExchangeRequest | m.LendRequest,
        *,
        for_each: bool = False,
        ahead: bool = False,
    ) -> Room:
        """Return what is free, as a worker or a broker says it in its request."""
        return cls(
            free.cpus,
            free.gpus,
            free.memory_bytes,
            frozenset(free.labels),
            request.seconds_left,
            for_each,
            ahead,
            tuple(request.types) or OUR_TYPES,
        )

    def fits(self, needs: Shape) -> bool:
        """Return whether a task of this shape can run here to its end."""
        return (
            needs.type in self.types
            and not (self.ahead and needs.suspect)
            and needs.cpus <= self.cpus
            and needs.gpus <= self.gpus
            and needs.memory_bytes <= self.memory_bytes
            and (not self.seconds_left or needs.time_limit_s <= self.seconds_left)
            and self.labels.issuperset(needs.labels)
        )

    def take(self, needs: Shape) -> None:
        """Take what a task needs."""
        if self.for_each:
            return
        self.cpus -= needs.cpus
        self.gpus -= needs.gpus
        self.memory_bytes -= needs.memory_bytes


@dataclass(slots=True, eq=False)
class Entry:
    """A task that has no result yet."""

    task: m.Task
    owner: str
    """The broker that lent it; empty: this one owns it."""
    owner_lease: int = 0
    lease_id: int = 0
    """The current or last one."""
    holder: str = ""
    """The worker or broker that has the task under the lease; empty: the task waits."""
    until: float = 0.0
    begun: bool = False
    """Whether its holder is known to have begun it under the current lease."""
    counted: bool = False
    """Whether a death was counted for the current lease. If its holder comes back, it was none."""
    withdrawn: bool = False
    step: int = 0
    """The step that the task reported last."""
    metrics: dict[str, float] = field(default_factory=dict)
    shape: Shape = field(init=False)

    def __post_init__(self) -> None:
        self.shape = Shape.of(self.task)

    def blame(self) -> None:
        """Count a death, unless the task may have waited at the worker: next time it will not."""
        if self.begun:
            self.task.deaths += 1
            self.counted = True
        else:
            self.shape = self.shape._replace(suspect=True)

    def hear(self, report: m.Report) -> bool:
        """Take in what the task says of itself; return whether that is new."""
        if not (report.metrics or report.step):
            return False
        known = self.metrics.items() >= dict(report.metrics).items()
        if known and report.step == self.step:
            return False
        self.step = report.step
        self.metrics.update(report.metrics)
        return True

    def report(self) -> m.Report:
        """Return what the task has said of itself, for its owner."""
        return m.Report(
            task_id=self.task.id,
            lease_id=self.owner_lease,
            step=self.step,
            metrics=self.metrics,
            deaths=self.task.deaths,
        )

    @property
    def priority(self) -> int:
        """Higher ones go first."""
        return self.task.priority

    @property
    def cost(self) -> float:
        """Return the share of a turn that it takes."""
        return float(max(1, self.shape.cpus))


class Tasks(dict[str, Entry]):
    """Tasks by their ids; it knows how long all their payloads are."""

    payload_bytes = 0

    def keep(self, entry: Entry) -> Entry:
        """Add a task."""
        self[entry.task.id] = entry
        self.payload_bytes += len(entry.task.payload)
        return entry

    def drop(self, task_id: str) -> None:
        """Keep a task no longer, if it is here."""
        if entry := self.pop(task_id, None):
            self.payload_bytes -= len(entry.task.payload)
