"""The interface of those who start the next attempt."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dlctl.contract import Action, Plan, StarterKind, VerdictKind


class CanNotStart(Exception):
    """The next attempt could not be started this way; the message gives the reason."""


@dataclass(frozen=True)
class Situation:
    """An attempt that has ended, and what is to follow."""

    job_dir: Path
    attempt: int
    """The attempt that has ended."""
    plan: Plan
    """The next attempt's."""
    kind: VerdictKind
    """Why the attempt has ended."""
    action: Action
    job_id: str
    """The job that asks."""
    ends_at: float | None
    """When the job ends, in Unix seconds; None: no limit is known."""
    in_job: bool = True
    """Whether the caller is the job's supervisor, on the job's first node."""
    is_fresh: bool = False
    """Whether the job has been given its nodes just now: it was requeued."""
    bad_hosts: Sequence[str] = ()
    """The job's nodes that the attempt must avoid."""
    has_fewer: bool = False
    """Whether the plan is for the nodes that are left, after the job has lost some."""
    nodes_are_fine: bool = False
    """Whether the attempt had trained, and only a process has died: no node needs a check."""

    @property
    def left_s(self) -> float | None:
        """Return how long the attempt may run if it starts as soon as it may."""
        begins_at = max(time.time(), self.action.not_before)
        return None if self.ends_at is None else self.ends_at - begins_at


class Starter(Protocol):
    """One way to start the next attempt."""

    kind: StarterKind
    runs_here: bool
    """Whether the attempt runs in the process that starts it, which is then replaced."""
    begins: bool
    """Whether `start` is called with the attempt's files in place; else they are written later, by
    the process that goes on."""

    def objection(self, situation: Situation) -> str:
        """Return why this way is not open, in a few words; empty if it is."""

    def start(self, situation: Situation) -> str:
        """Start the attempt; return the id of its job, or, if it does not begin now, a sentence.

        Raises:
            CanNotStart: nothing was started.
        """
