"""The manifest's `hang`: when learners that make no step are taken for hung."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from dlctl.manifest.parts import Duration, Real, Section
from dlctl.units import parse_duration

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
