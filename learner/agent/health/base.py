"""The interface of a check of a node."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from dlctl.contract import NodeFault, Plan
from dlctl.contract.launchers import Ranks


@dataclass(frozen=True)
class Here:
    """The learner for which a node is checked."""

    plan: Plan
    job_dir: Path
    attempt: int
    ranks: Ranks

    @property
    def is_first(self) -> bool:
        """Return whether this is the first learner of its node, which checks what all share."""
        return self.ranks.local_rank == 0


@dataclass
class Findings:
    """What the checks of a node have found."""

    faults: list[NodeFault] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    """Sentences about what is odd and ends no training, without the node's name."""
    reached: list[int] = field(default_factory=list)
    """The nodes, by their number in the job, to which a connection worked."""
    unreached: list[int] = field(default_factory=list)
    """The nodes to which none worked, though they listen."""


class Check(Protocol):
    """Looks at one thing, within a few seconds."""

    def __call__(self, here: Here, found: Findings) -> None:
        """Add what is found; an unexpected error is reported as a remark by the caller."""
