"""What `/v1` takes and tells, as FfDL's clients write and read it: checks and description.

These clients send names that mean nothing to us; such names are left alone.
"""

from __future__ import annotations

import re
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, BeforeValidator, Field
from typing_extensions import TypedDict

from dlctl.contract import ENDPOINT_ID, EVENTS
from dlctl.serve.operations import File, Operation, Text, like

OF_EVENT = {"all": EVENTS, "update": EVENTS} | {each: (each,) for each in EVENTS}
"""Types of events, theirs and ours → ours. Their `metrics` and `logs` are streams here."""
Pattern = re.compile("|".join(OF_EVENT))


# What is asked ------------------------------------------------------------------------------------


class Query(BaseModel):
    """The query of each route."""

    version: str | None = None


older = partial(Operation, query=Query)


class Page(Query):
    """Which lines."""

    pagesize: Annotated[int, Field(ge=1)] = 10_000
    pos: int = 0
    """Negative: from the end."""
    since_time: Annotated[
        int | AwareDatetime | Literal[""] | None, Field(union_mode="left_to_right")
    ] = None
    """RFC 3339, or milliseconds since 1970; negative: so many lines from the end; empty: all."""

    @property
    def since_ms(self) -> float | None:
        """Return since when, in milliseconds, or minus how many lines."""
        at = self.since_time
        return at.timestamp() * 1000 if isinstance(at, datetime) else at or None


class NewModel(BaseModel):
    """The parts of a form that submits."""

    manifest: Text
    model_definition: File | None = None


class Halt(BaseModel):
    """What can be changed: nothing else."""

    status: Annotated[Literal["halt"], BeforeValidator(lambda word: str(word).lower())]


class OfEvent(BaseModel):
    """An event of a training."""

    id: str
    type: Annotated[str, like(Pattern)]


class OneEndpoint(OfEvent):
    """An endpoint of it."""

    endpoint_id: Annotated[str, like(ENDPOINT_ID)]


class Registration(BaseModel):
    """Where an event is told."""

    url: str


# What is told -------------------------------------------------------------------------------------


class Made(TypedDict):
    """What was submitted."""

    model_id: str
    location: str


class Changed(TypedDict):
    """What was halted or deleted."""

    model_id: str


class Framework(TypedDict):
    """What trains."""

    name: str
    version: str


class Status(TypedDict):
    """How far it is."""

    status: Literal["QUEUED", "PENDING", "DOWNLOADING", "PROCESSING", "STORING", "COMPLETED",
                    "FAILED", "HALTED"]  # fmt: skip
    status_description: str
    status_message: str
    error_code: str
    submitted: str
    completed: str


class Training(TypedDict):
    """What it asks for."""

    command: str
    cpus: float
    gpus: float
    memory: float
    memory_unit: str
    learners: int
    input_data: list[str]
    output_data: list[str]
    training_status: Status


class DataStore(TypedDict):
    """A store; what opens it is never told."""

    data_store_id: str
    type: str
    connection: dict[str, str]


class MetricData(TypedDict):
    """What was measured at one step."""

    type: str
    timestamp: str
    iteration: int
    Values: dict[str, Any]


class Model(TypedDict):
    """A training as these clients know it."""

    model_id: str
    location: str
    name: str
    description: str
    framework: Framework
    training: Training
    data_stores: list[DataStore]
    metrics: list[MetricData]


class Models(TypedDict):
    """All of them."""

    models: list[Model]


class Meta(TypedDict):
    """Where a line stands."""

    training_id: str
    user_id: str
    time: int
    rindex: int


class LogLine(TypedDict):
    """A line of a log."""

    meta: Meta
    line: str


class LogLines(TypedDict):
    """A page of them."""

    models: list[LogLine]


class Any_(TypedDict):  # noqa: N801 - as they call it
    """A value with its type."""

    type: Literal["STRING", "JSONSTRING", "INT", "FLOAT"]
    value: str


class EMetric(TypedDict):
    """What was measured at one step, with its place."""

    meta: Meta
    grouplabel: str
    etimes: dict[str, Any_]
    values: dict[str, Any_]


class EMetrics(TypedDict):
    """A page of it."""

    models: list[EMetric]


class Endpoint(TypedDict):
    """Where an event is told."""

    id: str
    url: str


class Endpoints(TypedDict):
    """All of an event."""

    endpoints: list[Endpoint]
