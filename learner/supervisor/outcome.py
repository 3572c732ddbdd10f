"""What is known of an attempt once its launcher has ended: the evidence that a verdict rests on."""

from __future__ import annotations

from dataclasses import dataclass, field

from dlctl.contract import Guilty, Status
from learner.supervisor.control import Wish


@dataclass(frozen=True)
class Failure:
    """Why the learners were ended, known to who ended them."""

    reason: str
    hint: str
    guilty: Guilty


@dataclass(frozen=True)
class Ending:
    """What is known once the launcher has ended."""

    statuses: list[Status]
    """In rank order; a learner that never started has none."""
    launcher_exit: int | None
    launcher_words: list[str]
    wish: Wish | None
    logs: dict[int, list[str]] = field(default_factory=dict)
    """The last lines of the learners that could not say them any more."""
    lost: dict[int, str] = field(default_factory=dict)
    """Learners that were given up while enough others went on, and why; no status of theirs."""
    failure: Failure | None = None
    checkpoints: bool = True
    """Whether there is one to go on from."""
    undone: str = ""
    """What of the data the learners of a parameter server have left undone."""
