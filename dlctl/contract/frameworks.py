"""The frameworks that have a built-in loop, as both sides know them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LoopWords:
    """A framework with a built-in loop, as the manifest describes it."""

    job_suffix: str
    """The suffix of `framework.job`, the user's file."""
    example: str


LOOP_FRAMEWORKS = {
    "pytorch": LoopWords(".py", "train.py"),
    "torch": LoopWords(".py", "train.py"),
}
"""The frameworks by `framework.name` in lower case; `learner.frameworks.LOOPS` has the same."""
