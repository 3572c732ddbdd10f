"""The requests and answers of `/v1`, as FfDL's clients write and read them.

These clients send names that mean nothing to us; such names are left alone.
"""

from __future__ import annotations

import re
from datetime import datetime
from functools import partial
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, BeforeValidator, Field

from dlctl.contract import ENDPOINT_ID, EVENTS
from dlctl.serve.operations import File, Operation, Text, like, object_of

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
    """The change of a model."""

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


MADE = object_of(model_id=str, location=str)
CHANGED = object_of(model_id=str)
_STATUS = object_of(
    status={"enum": ["QUEUED", "PENDING", "DOWNLOADING", "PROCESSING", "STORING", "COMPLETED",
                     "FAILED", "HALTED"]},
    status_description=str, status_message=str, error_code=str, submitted=str, completed=str,
)  # fmt: skip
_TRAINING = object_of(
    command=str, cpus=float, gpus=float, memory=float, memory_unit=str, learners=int,
    input_data=[str], output_data=[str], training_status=_STATUS,
)  # fmt: skip
MODEL = object_of(
    model_id=str, location=str, name=str, description=str,
    framework=object_of(name=str, version=str), training=_TRAINING,
    data_stores=[object_of(data_store_id=str, type=str, connection=dict)],
    metrics=[object_of(type=str, timestamp=str, iteration=int, Values=dict)],
)  # fmt: skip
MODELS = object_of(models=[MODEL])
_META = object_of(training_id=str, user_id=str, time=int, rindex=int)
LOG_LINES = object_of(models=[object_of(meta=_META, line=str)])
_VALUES = {"type": "object", "additionalProperties": object_of(
    type={"enum": ["STRING", "JSONSTRING", "INT", "FLOAT"]}, value=str)}  # fmt: skip
METRICS = object_of(models=[
    object_of(meta=_META, grouplabel=str, etimes=_VALUES, values=_VALUES)])  # fmt: skip
ENDPOINT = object_of(id=str, url=str)
ENDPOINTS = object_of(endpoints=[ENDPOINT])
