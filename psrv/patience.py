"""Says that a learner waits long, and for whom: a training is not to stand still in silence."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from psrv.members import RANKS

Warn = Callable[[str], None]
"""Gets a line for the learner's log."""


def to_standard_error(line: str) -> None:
    """Write a line into the learner's log."""
    print(f"dlctl: {line}", file=sys.stderr, flush=True)


@dataclass
class Patience:
    """How long a learner waits without a word."""

    timeout_s: float
    warn: Warn = to_standard_error

    def begin(self) -> Wait:
        """Begin to wait."""
        return Wait(self, time.monotonic())


@dataclass
class Wait:
    """One wait, of which one line is said at most."""

    patience: Patience
    began_at: float
    said: bool = False

    def look(self, whom: Callable[[], str]) -> None:
        """Say for whom it is, once it has taken too long."""
        if not self.said and time.monotonic() > self.began_at + self.patience.timeout_s:
            self.said = True
            self.patience.warn(
                f"has waited for {whom()} for {self.patience.timeout_s:g} s, and goes on"
            )


def names(mask: int) -> str:
    """Return the ranks of a mask in words."""
    ranks = [str(rank) for rank in range(RANKS) if mask >> rank & 1]
    return f"rank {', '.join(ranks)}" if ranks else "the server of another node"
