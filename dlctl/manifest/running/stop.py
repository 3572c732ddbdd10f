"""The manifest's `stop`: guards that end a training by themselves."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from dlctl.manifest.parts import Count, Line, Real, Section


def _named(value: Any) -> Any:
    return True if value is None else value


class PlateauSection(Section, title="Plateau"):
    """A metric that has to improve."""

    metric: Line | None = Field(
        None,
        description="A metric that the training reports; default: the one that dlctl judges it by,"
        " with `patience` validation_loss.",
    )
    patience: Count | None = Field(
        None,
        ge=1,
        description="Epochs (or reports) without improvement; default: a test decides.",
    )
    better: Literal["lower", "higher"] | None = Field(
        None, description="Which values are better; default: lower, without `patience` by the name."
    )


def _automatic(value: Any) -> Any:
    if value is None or value == "auto":
        return {}
    if not isinstance(value, (dict, PlateauSection)):
        allowed = "auto, or metric, patience and better"
        raise ValueError(f"{value} is no guard; {allowed} are allowed")
    return value


class LossSpikeSection(Section, title="LossSpike"):
    """A loss that jumps."""

    factor: Real = Field(gt=1, description="How many times the median of the last 50 losses.")
    action: Literal["roll_back", "skip"] = Field(
        "roll_back",
        description="Go on from the newest checkpoint before; skip: without the batches between.",
    )


class StopSection(Section, title="Stop"):
    """Guards that end the training, or the attempt, by themselves."""

    not_a_number: Annotated[
        bool, BeforeValidator(_named), WithJsonSchema({"type": ["boolean", "null"]})
    ] = Field(False, description="End at the first step whose loss is NaN or infinite.")
    plateau: Annotated[
        PlateauSection | None,
        BeforeValidator(_automatic, json_schema_input_type=PlateauSection | Literal["auto"] | None),
    ] = Field(None, description="End when a metric stays as it is; auto: by dlctl's own test.")
    loss_spike: LossSpikeSection | None = Field(None, description="Roll back when the loss jumps.")
    max_node_hours: Real | None = Field(None, gt=0, description="Node-hours of all attempts.")
    max_gpu_hours: Real | None = Field(None, gt=0, description="GPU-hours of all attempts.")

    @model_validator(mode="after")
    def _something_is_set(self) -> StopSection:
        if not self.model_fields_set:
            raise ValueError("is empty; leave it out, or set a guard such as not_a_number: true")
        return self
