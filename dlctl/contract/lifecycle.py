"""The way on after an attempt: the plan's policy, and the action in a verdict."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class Next(str, enum.Enum):
    """The kind of an `Action`."""

    NOTHING = "nothing"
    """The training completed, or a person ended it."""
    CONTINUE = "continue"
    """The next link of the chain: a time limit or a preemption ended the attempt."""
    RETRY = "retry"
    """Another attempt after a fault."""
    STOP = "stop"
    """Another attempt would not help: a person decides."""

    def __str__(self) -> str:
        return self.value


class StarterKind(str, enum.Enum):
    """The starters of a next attempt, the cheapest first."""

    IN_ALLOCATION = "in_allocation"
    """The supervisor, on the nodes that the job has."""
    JOB = "job"
    """The ending job, which submits the next one."""
    REQUEUE = "requeue"
    """Slurm, which runs the same job again."""
    CLIENT = "client"
    """The next dlctl command that looks."""

    def __str__(self) -> str:
        return self.value


STARTERS = tuple(kind.value for kind in StarterKind)


AVOID = "# dlctl-avoid: "
"""Begins the batch script's line with the nodes, separated by commas, that have failed earlier
attempts. They are avoided as long as enough others are left, unlike those of an `--exclude`."""


@dataclass(frozen=True)
class Action:
    """The follow-up of an attempt, and its reason."""

    kind: Next
    """`nothing`: the training completed, or a person ended it; `continue`: the next link of a
    chain; `retry`: after a fault; `stop`: a person decides."""
    why: str
    """One sentence."""
    attempt: int = 0
    """The number of the next attempt; 0: there is none."""
    starter: str = ""
    """Who starts it: `in_allocation`, `job`, `requeue` or `client`."""
    not_before: float = 0.0
    """When it may start, in Unix seconds."""
    exclude: list[str] = field(default_factory=list)
    """Hosts that the next attempts avoid."""
    memory_factor: float = 1.0
    """By how much the next attempt asks for more memory."""
    time_s: int | None = None
    """The rest of the whole training's time; None: it has no limit."""

    @property
    def goes_on(self) -> bool:
        """Return whether another attempt follows."""
        return self.kind in (Next.CONTINUE, Next.RETRY)


@dataclass(frozen=True)
class Lifecycle:
    """The plan's decisions about the attempts after the first."""

    retries: int | None = None
    """How many faults are retried; None: 3 if there is a checkpoint, else none."""
    memory_factor: float | None = None
    """How much more memory the one retry after the host's memory ran out asks for; None: none."""
    backoff_s: float | None = None
    """The first delay, which grows fourfold with each retry in vain; None: by the kind of fault."""
    min_learners: int | None = None
    """With how few learners an attempt may go on if nodes are lost; None: only with all."""
    whole_attempt: int | None = None
    """The attempt whose plan has all learners, if this one goes on with fewer in the same job."""
    total_time_s: int | None = None
    """The manifest's `time`; None: no limit but each job's own."""
    links: int = 1
    """How many jobs the whole training is expected to take."""
    starters: list[str] = field(default_factory=lambda: list(STARTERS))
    """Who may start the next attempt, in order of preference: the site's `scheduler.next_attempt`.
    """


@dataclass(frozen=True)
class HangPolicy:
    """The limit after which learners that make no step count as hung.

    The limit is the largest of `floor_s`, `factor` times the median step, and twice the longest
    pause from which the learners have come back.
    """

    floor_s: float = 600.0
    factor: float = 10.0
