"""The frameworks that have a built-in loop, as both sides know them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LoopWords:
    """What the manifest says of a framework with a built-in loop."""

    job_suffix: str
    """The end of `framework.job`, the user's file."""
    example: str


LOOP_FRAMEWORKS = {
    "pytorch": LoopWords(".py", "train.py"),
    "torch": LoopWords(".py", "train.py"),
}
"""By `framework.name` in small letters; `learner.frameworks.LOOPS` has the same names."""
