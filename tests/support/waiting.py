"""Wait for events, never for time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import pytest

T = TypeVar("T")


def wait_until(
    condition: Callable[[], T],
    timeout_s: float = 120.0,
    *,
    interval_s: float = 0.05,
    what: str = "",
) -> T:
    """Return the first true answer of `condition`; fail when the time is up."""
    deadline = time.monotonic() + timeout_s
    while not (answer := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"waited {timeout_s:g} s for {what or condition}; last answer: {answer!r}")
        time.sleep(interval_s)
    return answer
