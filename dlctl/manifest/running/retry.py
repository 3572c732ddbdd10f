"""The manifest's `retries` and `retry`: what happens after an attempt that failed."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from dlctl.manifest.parts import Count, Duration, Section, as_written

_FACTOR = re.compile(r"(\d+(?:\.\d+)?)x", re.ASCII)
MOST = 16.0


def parse_factor(text: str) -> float:
    """Return the number of a factor such as 1.5x.

    Raises:
        ValueError: the text is no factor between 1x and 16x.
    """
    match = _FACTOR.fullmatch(text.strip())
    factor = float(match[1]) if match else 0.0
    if not 1.0 < factor <= MOST:
        raise ValueError(f"{text!r} is not a factor; write one between 1x and {MOST:g}x, as 1.5x")
    return factor


def _checked(text: str) -> str:
    parse_factor(text)
    return text


Factor = Annotated[
    str,
    BeforeValidator(as_written),
    AfterValidator(_checked),
    WithJsonSchema({"type": "string", "pattern": r"^\d+(\.\d+)?x$"}),
]


class RetrySection(Section, title="RetrySettings"):
    """How the next attempt differs from one that failed."""

    memory: Factor | None = Field(
        None, description="Once, if the host's memory ran out: how much more, as in 1.5x."
    )
    backoff: Duration | None = Field(
        None,
        description="The first delay; it grows fourfold with each retry in vain.",
    )
    min_learners: Count | None = Field(
        None, ge=1, description="With how few learners to go on if nodes are lost."
    )
