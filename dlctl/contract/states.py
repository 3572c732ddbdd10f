"""The words for what a training is doing."""

from __future__ import annotations

import enum


class State(str, enum.Enum):
    """The state of a training as users see it."""

    QUEUED = "QUEUED"
    """Recorded by dlctl, but not confirmed by the scheduler."""
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
    """Stopped with a checkpoint: `dlctl resume` continues it."""
    CANCELLED = "CANCELLED"

    @property
    def final(self) -> bool:
        """Return whether nothing runs any more (a HALTED training may be resumed)."""
        return self in _FINAL

    def __str__(self) -> str:
        return self.value


_FINAL = {State.COMPLETED, State.FAILED, State.HALTED, State.CANCELLED}


class VerdictKind(str, enum.Enum):
    """Why an attempt ended, for programs; the `reason` of its verdict is for people."""

    NONE = ""
    """The training completed."""
    USER_ERROR = "user_error"
    """The program, its data or the manifest: the same happens again."""
    OUT_OF_MEMORY = "out_of_memory"
    """Memory ran out on the host, in /dev/shm, or on a GPU."""
    DISK_FULL = "disk_full"
    """A file system is full, or a quota used up."""
    NODE_LOST = "node_lost"
    NETWORK = "network"
    TIME_LIMIT = "time_limit"
    """The time limit is near, or saving took longer than there was time."""
    SCHEDULER = "scheduler"
    """The scheduler ended the job or a step: preemption, scancel, a time limit it did not name."""
    SITE = "site"
    """Launcher, MPI, Python or file system of the site: see `dlctl sites check`."""
    REQUESTED = "requested"
    """A person halted or cancelled it."""
    SUPERSEDED = "superseded"
    """A later attempt has taken over, or the job directory is gone."""
    INTERNAL = "internal"
    """A fault in dlctl."""
    UNKNOWN = "unknown"

    def __str__(self) -> str:
        return self.value
