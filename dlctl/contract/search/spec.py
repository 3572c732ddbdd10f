"""The specification of a search, decided before it begins."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dlctl.contract.records import SCHEMA_VERSION


@dataclass(frozen=True)
class Parameter:
    """One dimension of the space."""

    name: str
    """A path of keys, as `framework.arguments.lr`, or any name that the task's program knows."""
    kind: str
    """`float`, `int` or `choice`."""
    low: float = 0.0
    high: float = 0.0
    """The greatest value; it is allowed, too."""
    step: float | None = None
    log: bool = False
    choices: list[Any] = field(default_factory=list)
    when: dict[str, list[Any]] = field(default_factory=dict)
    """The parameter exists only where each of these parameters has one of the values."""


ARGUMENTS = "framework.arguments."
"""What the names of parameters begin with that are arguments of a training's job."""
ENV, JOB = "env", "framework.job"
"""A training's variables, below their name, and its file: parameters, too."""


@dataclass(frozen=True)
class Task:
    """The program of a trial, and its needs."""

    type: str
    """`python`, `exec` or `training`."""
    target: str = ""
    """python: `module:Class`; exec: a shell command; training: the manifest's file name."""
    constants: dict[str, Any] = field(default_factory=dict)
    """Arguments that are the same in each trial."""
    time_limit_s: float = 3600.0
    """0: none. A worker whose job ends before that takes no such trial."""
    cpus: int = 1
    gpus: int = 0
    memory_bytes: int | None = None
    labels: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Budget:
    """The budget of a search, which ends as soon as one of these is used up."""

    trials: int | None = None
    time_s: float | None = None
    """How long the hub may run, over all its jobs."""
    node_hours: float | None = None
    """How long the workers may be there, added up over all of them."""
    failures: int = 0
    """The search fails when its first trials, so many, have failed and none has ended well, or when
    it ends with failed trials alone; 0: it never fails for that."""


@dataclass(frozen=True)
class Workers:
    """The jobs that run the trials."""

    least: int = 1
    most: int = 1
    slots: int = 1
    """Trials at a time in one worker."""
    time_s: int | None = None
    partition: str | None = None
    idle_s: float = 300.0
    """A worker without a task leaves after this."""
    per_broker: int = 64
    """One in so many workers brings a broker along; the hub's is the first."""


@dataclass(frozen=True)
class Spec:
    """Everything that was decided before a search began. Written as search/spec.json."""

    name: str
    space: list[Parameter]
    task: Task
    strategy: str
    """One of dlctl's, or the user's `module:Class`."""
    options: dict[str, Any] = field(default_factory=dict)
    metric: str = "value"
    """The key of a trial's result that is to become best."""
    maximize: bool = False
    seed: int = 0
    deterministic: bool = False
    window: int = 0
    """How many trials may be outstanding; 0: as many as the workers run, and as many more."""
    budget: Budget = field(default_factory=Budget)
    workers: Workers = field(default_factory=Workers)
    heartbeat_s: float = 1.0
    heartbeat_timeout_s: float = 10.0
    """After this long without a sign a worker or a broker is taken for dead."""
    network: str | None = None
    """The interface or range on which the processes listen; None: the host's name."""
    schema_version: int = SCHEMA_VERSION
