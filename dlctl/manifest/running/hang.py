"""The manifest's `hang`: when learners that make no step are taken for hung."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from dlctl import contract
from dlctl.manifest.parts import Duration, Real, Section
from dlctl.units import parse_duration

FLOOR_S = 600.0
OWN_PROGRAMS_FLOOR_S = 1800.0
"""The built-in loop reports its validation; a program of the user's own may not."""


LEAST_FLOOR_S = 15.0
"""Learners report every 5 s."""


def _long_enough(text: str) -> str:
    if parse_duration(text) < LEAST_FLOOR_S:
        raise ValueError(f"{text!r} is too short; {LEAST_FLOOR_S:g}s or more is allowed")
    return text


class HangSection(Section, title="HangSettings"):
    """When learners that make no step are ended, and their attempt retried."""

    watch: Literal["on", "off"] = Field("on", description="Whether to look for hangs.")
    floor: Annotated[Duration, AfterValidator(_long_enough)] | None = Field(
        None, description="The least time without a step; default: 10m, with a command 30m."
    )
    factor: Real = Field(
        10.0, ge=2, description="Or this many times the median step, if that is longer."
    )


def hang_policy(hang: HangSection, *, own_program: bool) -> contract.HangPolicy | None:
    """Return when learners are taken for hung, for the plan; None: never."""
    if hang.watch == "off":
        return None
    floor_s = OWN_PROGRAMS_FLOOR_S if own_program else FLOOR_S
    if hang.floor is not None:
        floor_s = float(parse_duration(hang.floor))
    return contract.HangPolicy(floor_s=floor_s, factor=hang.factor)
