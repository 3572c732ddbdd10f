"""search.yml as a model: what it has beside the keys of a manifest."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from dlctl.manifest.parts import Duration, Line, Name, Size
from dlctl.yaml_source import plain

_CLASS = re.compile(r"\w+(\.\w+)*:\w+")


class Part(BaseModel):
    """A mapping in search.yml."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Dimension(Part):
    """One parameter: exactly one of `float`, `int` and `choice`."""

    float_: tuple[float, float] | None = Field(None, alias="float", description="From, to.")
    int_: tuple[int, int] | None = Field(None, alias="int", description="From, to.")
    choice: Annotated[list[Any], BeforeValidator(plain)] | None = Field(None, min_length=1)
    log: bool = Field(False, description="Whether the range is divided by its logarithm.")
    step: float | None = Field(None, gt=0)
    when: dict[str, Any] = Field(
        default_factory=dict,
        description="Parameter → value, or list of values: the parameter exists only there.",
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Dimension:
        given = [self.float_ is not None, self.int_ is not None, self.choice is not None]
        if sum(given) != 1:
            raise ValueError("one of float, int and choice is allowed, as in {float: [0, 1]}")
        low, high = self.float_ or self.int_ or (0, 0)
        if not math.isfinite(high - low):
            raise ValueError("the range has no end; two numbers are allowed")
        if low > high:
            raise ValueError(f"the range begins at {low:g} and ends before that, at {high:g}")
        if self.int_ is not None and self.step is not None and self.step != int(self.step):
            raise ValueError(f"`step` of an int is a whole number, and {self.step:g} is none")
        if self.choice is not None and self.step is not None:
            raise ValueError("`step` divides a range, and a choice has none")
        if self.log and (self.choice is not None or low <= 0):
            raise ValueError("`log` needs a range above 0")
        return self


class Strategy(Part):
    """Which trials come next."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: Line = Field("random", description="One of dlctl's, or `module:Class` of your folder.")
    seed: int = 0
    deterministic: bool = Field(
        False, description="The same trials whatever the workers and their speed; needs `window`."
    )
    window: int = Field(0, ge=0, description="How many trials may be outstanding.")

    @model_validator(mode="after")
    def _window(self) -> Strategy:
        if self.deterministic and not self.window:
            raise PydanticCustomError(
                "contradiction", "`deterministic` needs a `window`, as in window: 16",
                {"key": "window"},
            )  # fmt: skip
        return self


class Metric(Part):
    """The metric that the search makes best."""

    name: Line = "value"
    goal: Literal["minimize", "maximize"] = "minimize"


class Budget(Part):
    """When the search ends."""

    trials: int | None = Field(None, gt=0)
    time: Duration | None = None
    node_hours: float | None = Field(None, gt=0)
    failures: int = Field(
        10,
        ge=0,
        description="It fails when its first trials, so many, have failed; 0: never.",
    )

    @model_validator(mode="after")
    def _some(self) -> Budget:
        if self.trials is None and self.time is None and self.node_hours is None:
            raise ValueError("one of trials, time and node_hours is needed, or it never ends")
        return self


class Task(Part):
    """The program of a trial; without this section a trial is a training of the manifest."""

    python: Line | None = Field(None, description="`module:Class`, a `search.tasks.BaseTask`.")
    exec: Line | None = Field(
        None, description="A shell command: arguments as JSON on its input, its result as JSON."
    )
    type: Line | None = Field(
        None, description="A type of your own, which only workers of your own run."
    )
    target: Line | None = Field(None, description="What such a worker is to run.")
    arguments: dict[str, Any] = Field(default_factory=dict, description="The same in each trial.")
    time: Duration = "1h"
    cpus: int = Field(1, ge=1)
    gpus: int = Field(0, ge=0)
    memory: Size | None = None

    @model_validator(mode="after")
    def _one(self) -> Task:
        if len([each for each in (self.python, self.exec, self.type) if each is not None]) != 1:
            raise ValueError("one of python, exec and type is allowed, as in python: trials:Digits")
        if (self.type is None) != (self.target is None):
            raise ValueError("`type` and `target` belong together, as in {type: node, target: lr}")
        if self.type in ("python", "exec", "training"):
            raise ValueError(f"the type {self.type} is dlctl's own; name another one")
        if self.python is not None and not _CLASS.fullmatch(self.python):
            raise ValueError(
                f"{self.python!r} names no class; write module:Class, as in trials:Trial"
            )
        return self


MOST_WORKERS = 1000


class Span(NamedTuple):
    """The number of workers."""

    least: int
    most: int


def parse_span(value: Any) -> Span:
    """Return the span that `8..40`, or a single number, names.

    Raises:
        ValueError: it is none, or is not between 0 and 1000.
    """
    least, dots, most = str(plain(value)).partition("..")
    if not (least.strip().isdecimal() and (most.strip().isdecimal() or not dots)):
        raise ValueError(f"{value!r} is no number of workers; write 8, or 8..40")
    span = Span(int(least), int(most if dots else least))
    if not 0 <= span.least <= span.most <= MOST_WORKERS:
        raise ValueError(f"{value} is not from 0 to {MOST_WORKERS}, the smaller number first")
    return span


class Workers(Part):
    """The jobs that run the trials."""

    jobs: Annotated[Span, BeforeValidator(parse_span)] = Field(
        Span(1, 1), description="How many jobs, as in 4, or in 8..40."
    )
    slots: int = Field(1, ge=1, le=512, description="How many trials a job runs at a time.")
    time: Duration | None = Field(None, description="The time limit of one such job.")
    partition: Line | None = None
    per_broker: int = Field(64, ge=1, description="One in so many jobs brings a broker along.")
    idle: Duration = Field("5m", description="A worker without a trial leaves after this.")


class Hub(Part):
    """The job that directs the search."""

    time: Duration | None = Field(None, description="How long the search may take over all jobs.")
    memory: Size = "1GiB"
    partition: Line | None = None


class SearchFile(Part):
    """The keys of search.yml beside those of a manifest."""

    name: Name
    space: dict[str, Dimension] = Field(min_length=1)
    strategy: Strategy = Field(default_factory=lambda: Strategy.model_validate({}))
    metric: Metric = Metric()
    budget: Budget
    task: Task | None = None
    workers: Workers = Field(default_factory=lambda: Workers.model_validate({}))
    hub: Hub = Field(default_factory=lambda: Hub.model_validate({}))

    @model_validator(mode="after")
    def _whose_workers(self) -> SearchFile:
        if self.task is not None and self.task.type is not None and self.workers.jobs.most:
            raise ValueError(
                f"only your own workers run tasks of the type {self.task.type}; write "
                "workers: {jobs: 0}, and start yours"
            )
        return self
