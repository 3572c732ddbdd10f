"""The evidence on an attempt once its launcher has ended; a verdict rests on nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field

from dlctl.contract import Status
from learner.job.outcome import Outcome
from learner.supervisor.control import EndRequest


@dataclass(frozen=True)
class Evidence:
    """What was seen of the learners and their launcher."""

    statuses: list[Status]
    """In rank order; a learner that never started has none."""
    launcher_exit: int | None
    launcher_words: list[str]
    request: EndRequest | None
    logs: dict[int, list[str]] = field(default_factory=dict)
    """The last lines in the logs of learners whose watchdog reported no end."""
    lost: dict[int, str] = field(default_factory=dict)
    """Learners that were given up while enough others went on, and why; `statuses` has none of
    theirs."""
    failure: Outcome | None = None
    """Why the supervisor ended the learners, if it did."""
    checkpoints: bool = True
    """Whether there is a checkpoint to go on from."""
    undone: str = ""
    """Which part of the data the learners of a parameter server have left undone."""
