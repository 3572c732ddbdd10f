"""How long a learner waits for others, and that it says for whom if that is long.

A training is not to stand still in silence; nor is a halt to be lost for servers that are gone.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from psrv.errors import LateError
from psrv.shard.membership import RANKS

Warn = Callable[[str], None]
"""Gets a line for the learner's log."""
Late = Callable[[float], bool]
"""Asked while others are waited for: whether this share of a halt's grace period is over."""
FOR_LEARNERS, FOR_SERVERS = 0.5, 0.75
"""The share in which those may be waited for that halt as well, and the answers of servers; what
is left is for saving."""
_LEAST_S = 0.5
"""So long others are waited for even then."""
_NAP_S, _LONGEST_NAP_S = 1e-3, 0.05
_AS_LONG = "as long as the halt leaves time"


def never(share: float) -> bool:
    """Return False: no halt is known of."""
    del share
    return False


def to_standard_error(line: str) -> None:
    """Write a line into the learner's log; on a full disk it is lost, and no more."""
    with contextlib.suppress(OSError):
        print(f"dlctl: {line}", file=sys.stderr, flush=True)


@dataclass
class Patience:
    """How long a learner waits without a word."""

    timeout_s: float
    warn: Warn = to_standard_error
    late: Late = never

    def begin(self) -> Wait:
        """Begin to wait."""
        return Wait(self, time.monotonic())


@dataclass
class Wait:
    """One wait, of which one line is said at most."""

    patience: Patience
    began_at: float
    said: bool = False

    def look(self, whom: Callable[[], str], *, may_be_gone: bool) -> None:
        """Say for whom it is, once it has taken too long.

        Args:
            whom: Asked then.
            may_be_gone: Whether they may never come: they are not on this node, where it is seen
                who lives.

        Raises:
            LateError: a halt leaves no more time for such.
        """
        waited_s = time.monotonic() - self.began_at
        if may_be_gone and waited_s > _LEAST_S and self.patience.late(FOR_LEARNERS):
            raise LateError(f"has waited for {whom()} for {_AS_LONG}")
        if not self.said and waited_s > self.patience.timeout_s:
            self.said = True
            self.patience.warn(
                f"has waited for {whom()} for {self.patience.timeout_s:g} s, and goes on"
            )


def wait_until(true: Callable[[], bool], patience: Patience, share: float = FOR_SERVERS) -> bool:
    """Wait for something, not for longer than the patience; return whether it has come.

    Args:
        true: Asked often.
        patience: How long.
        share: Of the grace period of a halt.
    """
    began_at, nap_s = time.monotonic(), _NAP_S
    while not true():
        waited_s = time.monotonic() - began_at
        if waited_s > patience.timeout_s or (waited_s > _LEAST_S and patience.late(share)):
            return False
        time.sleep(nap_s)
        nap_s = min(2 * nap_s, _LONGEST_NAP_S)
    return True


def how_long(patience: Patience) -> str:
    """Return how long was waited in vain: the end of a sentence."""
    if patience.late(FOR_SERVERS):
        return f"for {_AS_LONG}"
    return f"for {patience.timeout_s:g} s"


def names(mask: int) -> str:
    """Return the ranks of a mask in words."""
    ranks = [str(rank) for rank in range(RANKS) if mask >> rank & 1]
    return f"rank {', '.join(ranks)}" if ranks else "the server of another node"
