"""Intervals in a manifest: `auto`, `10 steps`, `1 epoch`, `5m`."""

from __future__ import annotations

import difflib
import re
from typing import Literal

from dlctl.units import UnitError, parse_duration

AUTO: Literal["auto"] = "auto"
_COUNT = re.compile(r"\s*([0-9]{1,12})\s*(steps?|epochs?)\s*", re.ASCII)
_NUMBER = re.compile(r"[0-9]*", re.ASCII)
_MOST_SHOWN = 60
"""Characters of a value that a message repeats."""


def parse_every(value: str) -> tuple[Literal["auto", "steps", "epochs", "s"], int]:
    """Return the unit and the count of `10 steps`, `1 epoch` or `5m`; `auto` has the count 0.

    Raises:
        ValueError: what was seen, the closest match, what is allowed.
    """
    if value.strip() == AUTO:
        return AUTO, 0
    match = _COUNT.fullmatch(value)
    if match and int(match.group(1)) > 0:
        return ("steps" if match.group(2).startswith("step") else "epochs"), int(match.group(1))
    try:
        return "s", parse_duration(value)
    except UnitError:
        problem = f"{value[:_MOST_SHOWN]!r} is not an interval"
        allowed = "rite 'auto', '10 steps', '1 epoch', or a time such as '5m'"
        raise ValueError(problem + _meant(value, ["steps", "epochs"], [AUTO]) + allowed) from None


def parse_steps(value: str) -> int:
    """Return the count of `1000 steps`.

    Raises:
        ValueError: what was seen, the closest match, what is allowed.
    """
    match = _COUNT.fullmatch(value)
    if match and match.group(2).startswith("step") and int(match.group(1)) > 0:
        return int(match.group(1))
    problem = f"{value[:_MOST_SHOWN]!r} is not a number of steps"
    raise ValueError(f"{problem}{_meant(value, ['steps'], [])}rite '1000 steps'")


def _meant(value: str, units: list[str], words: list[str]) -> str:
    """Return the closest match, up to the W of what is allowed."""
    text = value[:_MOST_SHOWN].strip().lower()
    match = _NUMBER.match(text)
    number = match.group() if match else ""
    word = text[len(number) :].strip()
    if number and not word:
        near = units[:1]
    else:
        near = difflib.get_close_matches(word, units if number else words, 1)
    if not near or (number and int(number) == 0):
        return "; w"
    return f"; did you mean {f'{number} {near[0]}'.strip()!r}? W"
