"""The words for what a training is doing."""

from __future__ import annotations

import enum


class State(str, enum.Enum):
    """What a user is told about a training (the service's words)."""

    QUEUED = "QUEUED"
    """Recorded by dlctl; the scheduler has not confirmed it."""
    PENDING = "PENDING"
    """In the scheduler's queue."""
    DEPLOYING = "DEPLOYING"
    """The job has started; the preflight runs."""
    DOWNLOADING = "DOWNLOADING"
    """Training data is being loaded."""
    TRAINING = "TRAINING"
    """The learners run (the paper's PROCESSING)."""
    STORING = "STORING"
    """Results are being stored."""
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    HALTED = "HALTED"
    """Stopped with a checkpoint: `dlctl resume` goes on."""
    CANCELLED = "CANCELLED"

    @property
    def final(self) -> bool:
        """Return whether nothing runs any more (a HALTED training may be resumed)."""
        return self in _FINAL

    def __str__(self) -> str:
        return self.value


_FINAL = {State.COMPLETED, State.FAILED, State.HALTED, State.CANCELLED}
