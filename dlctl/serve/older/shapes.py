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


class V1Query(BaseModel):
    """The query of each route."""

    version: str | None = None


older = partial(Operation, query=V1Query)


def _dated(value: object) -> object:
    """Return a time's text; a number would count as seconds since 1970.

    Raises:
        ValueError: it has no date.
    """
    if not re.match(r"\d{4}-", str(value)):
        raise ValueError("a time is as in 2026-01-31T14:30:00Z, or in whole milliseconds")
    return value


class V1Page(V1Query):
    """Which lines."""

    pagesize: Annotated[int, Field(ge=1)] = 10_000
    pos: int = 0
    """Negative: from the end."""
    since_time: Annotated[
        int | Annotated[AwareDatetime, BeforeValidator(_dated)] | Literal[""] | None,
        Field(union_mode="left_to_right"),
    ] = None
    """RFC 3339, or milliseconds since 1970; negative: so many lines from the end; empty: all."""

    @property
    def since_ms(self) -> float | None:
        """Return since when, in milliseconds, or minus how many lines."""
        at = self.since_time
        return at.timestamp() * 1000 if isinstance(at, datetime) else at or None


class V1NewModel(BaseModel):
    """The parts of a form that submits."""

    manifest: Text
    model_definition: File | None = None


class V1Halt(BaseModel):
    """What can be changed: nothing else."""

    status: Annotated[Literal["halt"], BeforeValidator(lambda word: str(word).lower())]


class V1OfEvent(BaseModel):
    """An event of a training."""

    id: str
    type: Annotated[str, like(Pattern)]


class V1OneEndpoint(V1OfEvent):
    """An endpoint of it."""

    endpoint_id: Annotated[str, like(ENDPOINT_ID)]


class V1Registration(BaseModel):
    """Where an event is told."""

    url: str


# What is told -------------------------------------------------------------------------------------


class V1Made(TypedDict):
    """What was submitted."""

    model_id: str
    location: str


class V1Changed(TypedDict):
    """What was halted or deleted."""

    model_id: str


class V1Framework(TypedDict):
    """What trains."""

    name: str
    version: str


class V1Status(TypedDict):
    """How far it is."""

    status: Literal["QUEUED", "PENDING", "DOWNLOADING", "PROCESSING", "STORING", "COMPLETED",
                    "FAILED", "HALTED"]  # fmt: skip
    status_description: str
    status_message: str
    error_code: str
    submitted: str
    completed: str


class V1Training(TypedDict):
    """What it asks for."""

    command: str
    cpus: float
    gpus: float
    memory: float
    memory_unit: str
    learners: int
    input_data: list[str]
    output_data: list[str]
    training_status: V1Status


class V1DataStore(TypedDict):
    """A store; what opens it is never told."""

    data_store_id: str
    type: str
    connection: dict[str, str]


class V1MetricData(TypedDict):
    """What was measured at one step."""

    type: str
    timestamp: str
    iteration: int
    Values: dict[str, Any]


class V1Model(TypedDict):
    """A training as these clients know it."""

    model_id: str
    location: str
    name: str
    description: str
    framework: V1Framework
    training: V1Training
    data_stores: list[V1DataStore]
    metrics: list[V1MetricData]


class V1Models(TypedDict):
    """All of them."""

    models: list[V1Model]


class V1Meta(TypedDict):
    """Where a line stands."""

    training_id: str
    user_id: str
    time: int
    rindex: int


class V1LogLine(TypedDict):
    """A line of a log."""

    meta: V1Meta
    line: str


class V1LogLines(TypedDict):
    """A page of them."""

    models: list[V1LogLine]


class V1Any(TypedDict):
    """A value with its type."""

    type: Literal["STRING", "JSONSTRING", "INT", "FLOAT"]
    value: str


class V1EMetric(TypedDict):
    """What was measured at one step, with its place."""

    meta: V1Meta
    grouplabel: str
    etimes: dict[str, V1Any]
    values: dict[str, V1Any]


class V1EMetrics(TypedDict):
    """A page of it."""

    models: list[V1EMetric]


class V1Endpoint(TypedDict):
    """Where an event is told."""

    id: str
    url: str


class V1Endpoints(TypedDict):
    """All of an event."""

    endpoints: list[V1Endpoint]
