"""A rehearsal: a short job that trains a few steps, is disturbed, and compares the outcome."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from dlctl.contract.records import SCHEMA_VERSION

REHEARSAL_FOLDER = "rehearsal"
"""What the undisturbed attempt of a rehearsal left: its `checkpoints/`."""
REHEARSAL = "rehearsal.json"
"""A `Rehearsed`."""


class Stage(str, enum.Enum):
    """The attempts of a rehearsal, in their order."""

    REFERENCE = "reference"
    """Trains all steps undisturbed."""
    HALT = "halt"
    """Begins anew, and is halted."""
    KILL = "kill"
    """Goes on, and learner 0 is killed."""
    FINISH = "finish"
    """Goes on to the end; then the checkpoints are compared."""

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Rehearsal:
    """The task of an attempt of a rehearsal."""

    steps: int
    """After how many steps the built-in loop ends."""
    stage: Stage = Stage.REFERENCE
    """`reference`, `halt`, `kill` or `finish`: one attempt each."""
    at: int | None = None
    """The step after which the learners wait for the halt, or learner 0 is killed."""


@dataclass(frozen=True)
class Rehearsed:
    """The findings of a rehearsal; None: it could not be measured."""

    equal: bool
    """The disturbed training ended bit for bit where the undisturbed one did."""
    steps: int
    """How many steps both have trained."""
    differing: list[str] = field(default_factory=list)
    """The tensors, and other parts of the state, that differ."""
    largest_difference: float | None = None
    """The largest difference between two elements; None: not known, or there is none."""
    halted_at: int | None = None
    """The step of the checkpoint that the halt has saved."""
    killed_at: int | None = None
    """The step after which learner 0 was killed."""
    total_steps: int | None = None
    """The steps of the whole training."""
    step_s: float | None = None
    """A step without the wait for checkpoints: the mean over the second half of the undisturbed
    steps."""
    samples_per_s: float | None = None
    """All learners together, in the same steps."""
    checkpoint_s: float | None = None
    """How long a checkpoint takes until it is safe on the disk."""
    checkpoint_bytes: int | None = None
    """A checkpoint's size."""
    memory_bytes: int | None = None
    """The largest resident memory that any learner has reported."""
    start_s: float | None = None
    """From the start of the job to the first step."""
    restart_s: float | None = None
    """From the kill to the first step after it."""
    schema_version: int = SCHEMA_VERSION
