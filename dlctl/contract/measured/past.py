"""Records of an attempt's requests and use: verdicts carry them, suggestions rest on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

HIGH = 0.95
"""The quantile that stands for "nearly always enough"."""
_BUSY_PERCENT = 5.0
"""A GPU that is less busy in the mean is idle, unless its memory is used."""
_HOLDS = 0.02
"""An idle driver and a bare CUDA context take less."""
_TELLING = ("COMPLETED", "HALTED")


@dataclass(frozen=True)
class Past:
    """The requests and the use of one attempt; None: nobody knows."""

    training_id: str
    attempt: int
    name: str
    code_digest: str
    job_id: str
    """Attempts may share a job."""
    site: str
    partition: str
    learners: int
    nodes: int
    gpus: int
    """GPUs, CPUs and memory are those of one learner, here and below."""
    cpus: int
    memory_asked_bytes: int | None
    epochs: int
    """0: the training's own program decides."""
    batch_size: int
    state: str
    """The verdict's state."""
    kind: str = ""
    """The verdict's `VerdictKind`."""
    is_rehearsal: bool = False
    queued_s: float = 0.0
    held_s: float = 0.0
    """From the start of the attempt to its end."""
    start_s: float = 0.0
    """From the start of the attempt to the first step."""
    store_s: float = 0.0
    """From the last line of metrics to the end of the attempt."""
    memory_bytes: int | None = None
    """The peak of any learner, as far as it was measured."""
    cpus_used: float | None = None
    """Nearly always enough for any learner."""
    gpus_used: int | None = None
    """The most GPUs of a learner that were busy."""
    step_s: float | None = None
    """Nearly always enough for a step."""
    steps: int = 0
    """The last step that any learner has reported."""
    epoch_samples: float | None = None
    """Samples of one epoch, if the built-in loop has done all of its epochs."""
    exchange_share: float | None = None
    """Share of a step in which the learners exchange."""
    save_s: float | None = None
    """How long training stops for a checkpoint, in the mean."""
    validation_s: float | None = None

    @property
    def token(self) -> str:
        """Return what tells the attempt from others."""
        return f"{self.training_id}.{self.attempt}"

    @property
    def is_telling(self) -> bool:
        """Return whether it came so far that its use of memory, CPUs and GPUs says something."""
        return self.steps > 0 or self.state in _TELLING


@dataclass(frozen=True)
class LearnerUse:
    """The use of one learner so far in an attempt, written by its collector."""

    memory_bytes: int = 0
    """The most that its processes had resident; what they share counts in each."""
    job_memory_bytes: int = 0
    """The most memory of the whole job on the learner's node, as the kernel counts it."""
    cpu_tenths: dict[str, int] = field(default_factory=dict)
    """Tenths of a core → during how many lines of metrics so many were used."""
    gpu_percent: dict[str, float] = field(default_factory=dict)
    """How busy each GPU was in the mean, by the learner's number of it."""
    gpu_memory_share: dict[str, float] = field(default_factory=dict)
    """The largest share of each GPU's memory that was in use."""
    lines: int = 0
    """How many lines of metrics the means are of."""
    schema_version: int = 1

    @property
    def busy_gpus(self) -> int | None:
        """Return how many GPUs computed, or held what the others need; None if nobody knows."""
        if not self.gpu_percent:
            return None
        return sum(percent >= _BUSY_PERCENT or self.gpu_memory_share.get(number, 0) >= _HOLDS
                   for number, percent in self.gpu_percent.items())  # fmt: skip

    @property
    def cpus(self) -> float | None:
        """Return how many cores were nearly always enough; None if nobody knows."""
        left = sum(self.cpu_tenths.values()) * HIGH
        for tenths, count in sorted((int(key), count) for key, count in self.cpu_tenths.items()):
            left -= count
            if left <= 0:
                return tenths / 10
        return None


def quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile, interpolated between the nearest two values; there is at least one."""
    known = sorted(values)
    at = share * (len(known) - 1)
    low = int(at)
    high = min(low + 1, len(known) - 1)
    return known[low] + (known[high] - known[low]) * (at - low)
