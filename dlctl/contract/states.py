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

    @property
    def runs(self) -> bool:
        """Return whether a job of the training has begun and not ended."""
        return not self.final and self not in (State.QUEUED, State.PENDING)

    @property
    def tone(self) -> str:
        """Return the tone in which views show it: waits, busy, good, warn or bad."""
        if self.final:
            return {State.COMPLETED: "good", State.FAILED: "bad"}.get(self, "warn")
        return "busy" if self.runs else "waits"

    def __str__(self) -> str:
        return self.value


_FINAL = {State.COMPLETED, State.FAILED, State.HALTED, State.CANCELLED}


class VerdictKind(str, enum.Enum):
    """Why an attempt ended, for programs; the `reason` of its verdict is for people."""

    NONE = ""
    """The training completed."""
    USER_ERROR = "user_error"
    """A traceback that no other kind explains, a missing file or module, a shell's 126 or 127, exit
    code 78: the same happens again."""
    NOT_A_NUMBER = "not_a_number"
    """The loss, a gradient or a weight became NaN or infinite."""
    OUT_OF_MEMORY = "out_of_memory"
    """Memory ran out on the host, or in /dev/shm."""
    LOSS_SPIKE = "loss_spike"
    """The loss jumped: the training goes on from the checkpoint before."""
    PLATEAU = "plateau"
    """The metric of `stop.plateau` no longer improves; also of a training that COMPLETED."""
    BUDGET = "budget"
    """The node-hours or GPU-hours of `stop` are used up."""
    GPU_OUT_OF_MEMORY = "gpu_out_of_memory"
    """Memory ran out on a GPU."""
    GPU_ERROR = "gpu_error"
    """A GPU failed: an uncorrectable ECC error, an Xid, or it fell off the bus."""
    DISK_FULL = "disk_full"
    """A file system is full, or a quota used up."""
    NODE_LOST = "node_lost"
    """Slurm or mpirun lost a node."""
    NETWORK = "network"
    """A connection to another learner or to a server broke, and no learner names its own fault."""
    HUNG = "hung"
    """No learner did a step for too long."""
    TIME_LIMIT = "time_limit"
    """The scheduler's time limit is near, or saving took longer than there was time."""
    PREEMPTED = "preempted"
    """The scheduler gave the nodes to another job, which came first."""
    TRY_AGAIN = "try_again"
    """The program asked for another attempt, by its exit code 75."""
    SCHEDULER = "scheduler"
    """The scheduler ended the job or a step, and it is not known why."""
    SITE = "site"
    """Launcher, MPI, Python or file system of the site: see `dlctl doctor`."""
    REQUESTED = "requested"
    """A person halted it: `dlctl halt`."""
    CANCELLED = "cancelled"
    """A person cancelled it, by `dlctl cancel` or by the scheduler's own command."""
    SUPERSEDED = "superseded"
    """A later attempt has taken over, or the job directory is gone."""
    INTERNAL = "internal"
    """A fault in dlctl."""
    UNKNOWN = "unknown"
    """A signal that nothing explains, a segmentation fault, a loop that ended without a message."""

    def __str__(self) -> str:
        return self.value
