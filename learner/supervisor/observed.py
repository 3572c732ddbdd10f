"""What was observed of an attempt whose launcher has ended; its verdict rests on nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field

from dlctl.contract import Status
from learner.job.outcome import Outcome
from learner.supervisor.control import EndRequest


@dataclass(frozen=True)
class Observed:
    """What the supervisor observed about the learners and their launcher."""

    statuses: list[Status]
    """In rank order; a learner that never started has none."""
    launcher_exit: int | None
    launcher_words: list[str]
    request: EndRequest | None
    logs: dict[int, list[str]] = field(default_factory=dict)
    """The last lines in the logs of learners whose watchdog reported no end."""
    lost: dict[int, str] = field(default_factory=dict)
    """Why each learner was given up that the others continued without, by rank; `statuses` leaves
    these learners out."""
    failure: Outcome | None = None
    """Why the supervisor itself ended the learners; None if it did not."""
    checkpoints: bool = True
    """Whether there is a checkpoint to resume from."""
    undone: str = ""
    """Which part of the data the learners of a parameter server have not trained on, in words."""
