"""The manifest's `stop`: guards that end a training by themselves."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from dlctl import contract
from dlctl.manifest.parts import Count, Line, Real, Section


def _named(value: Any) -> Any:
    return True if value is None else value


class PlateauSection(Section, title="Plateau"):
    """A metric that has to improve."""

    metric: Line = Field("validation_loss", description="A metric that the training reports.")
    patience: Count = Field(ge=1, description="Epochs (or reports) without improvement.")
    better: Literal["lower", "higher"] = Field("lower", description="Which values are better.")


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
    plateau: PlateauSection | None = Field(None, description="End when a metric stays as it is.")
    loss_spike: LossSpikeSection | None = Field(None, description="Roll back when the loss jumps.")
    max_node_hours: Real | None = Field(None, gt=0, description="Node-hours of all attempts.")
    max_gpu_hours: Real | None = Field(None, gt=0, description="GPU-hours of all attempts.")

    @model_validator(mode="after")
    def _something_is_set(self) -> StopSection:
        if not self.model_fields_set:
            raise ValueError("is empty; leave it out, or set a guard such as not_a_number: true")
        return self


def stop_rules(section: StopSection | None) -> contract.StopRules | None:
    """Return the guards for the plan."""
    if section is None:
        return None
    plateau, spike = section.plateau, section.loss_spike
    return contract.StopRules(
        not_a_number=section.not_a_number,
        plateau=contract.Plateau(**plateau.model_dump()) if plateau else None,
        loss_spike=spike.factor if spike else None,
        skip_batches=spike is not None and spike.action == "skip",
        max_node_hours=section.max_node_hours,
        max_gpu_hours=section.max_gpu_hours,
    )
