"""Decisions made before a search begins: its specification, strategies, and a trial's plan."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dlctl.contract.plan import Plan
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
    """`python`, `exec`, `training`, or a type that only the user's own workers run."""
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

    @property
    def kind(self) -> str:
        """Return the type that brokers and workers know: a training is a class of dlctl's."""
        return "python" if self.type == "training" else self.type


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
    """A strategy of dlctl, or the user's `module:Class`."""
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


def trial_plan(plan: Plan, point: Mapping[str, Any], generation: int, job_dir: str) -> Plan:
    """Return the plan of one trial.

    Args:
        plan: What all trials of the search have in common.
        point: A key of the plan, such as `training.batch_size` or `framework.arguments.lr`, and the
            value that it has in this trial.
        generation: How many trials this one goes on from, one after the other. Each adds what the
            plan says of epochs and steps.
        job_dir: The trial's own.

    Raises:
        AttributeError, TypeError: the plan has no such key.
    """
    for key, value in point.items():
        section, *_ = path = key.split(".")
        is_text = section != ENV or isinstance(value, str)
        plan = _with(plan, path, value if is_text else json.dumps(value))
    training = plan.training
    training = replace(
        training, epochs=training.epochs * (1 + generation),
        steps=None if training.steps is None else training.steps * (1 + generation),
        settings_of_build=generation > 0,
    )  # fmt: skip
    return replace(plan, training=training, job_dir=job_dir)


def _with(part: Any, path: Sequence[str], value: Any) -> Any:
    """Return a part of a plan with another value at a path of keys."""
    key, *rest = path
    if isinstance(part, Mapping):
        return {**part, key: _with(part[key], rest, value) if rest else value}
    return replace(part, **{key: _with(getattr(part, key), rest, value) if rest else value})


@dataclass(frozen=True)
class Option:
    """A number that a strategy takes."""

    least: float
    most: float = math.inf
    """The greatest value; it is allowed, too."""
    is_whole: bool = True
    is_open: bool = False
    """The number must be greater than `least`."""

    def fault(self, value: object) -> str:
        """Return which values are allowed, if this one is not; else an empty text."""
        kinds = (int,) if self.is_whole else (int, float)
        if isinstance(value, kinds) and not isinstance(value, bool):
            is_above = value > self.least if self.is_open else value >= self.least
            if is_above and value <= self.most:
                return ""
        noun = "a whole number" if self.is_whole else "a number"
        bounds = f"{'above' if self.is_open else 'from'} {self.least:g}"
        return f"{noun} {bounds}{'' if math.isinf(self.most) else f' to {self.most:g}'} is allowed"


_COUNT = Option(1)
_SHARE = Option(0, 1, is_whole=False)
_ETA = Option(2)

OPTIONS: dict[str, dict[str, Option]] = {
    "grid": {"levels": _COUNT},
    "random": {},
    "latin_hypercube": {"samples": _COUNT},
    "genetic": {
        "population": _COUNT, "tournament": _COUNT, "mutation": _SHARE, "crossover": _SHARE,
    },
    "aging": {"population": _COUNT, "sample": _COUNT, "mutation": _SHARE},
    "asha": {"first": _COUNT, "eta": _ETA, "most": _COUNT},
    "hyperband": {"eta": _ETA, "most": _COUNT},
    "pbt": {
        "population": Option(2), "share": Option(0, 0.5, is_whole=False, is_open=True),
        "factor": Option(1, is_whole=False, is_open=True), "resample": _SHARE,
    },
}  # fmt: skip
"""The options of each strategy of dlctl's own."""
SAMPLERS = ("tpe", "cmaes", "gp", "qmc", "nsga2")
"""Optuna's, whose options only Optuna knows."""
STRATEGIES = (*OPTIONS, *SAMPLERS)
"""A strategy of the user's is `module:Class`."""
