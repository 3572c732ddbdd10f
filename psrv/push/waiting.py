"""How long a learner waits for others, and when it warns about that.

A training must not stand still in silence, and a halt must not be lost to servers that are gone.
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
"""Returns whether this share of a halt's grace period is over; called while others are waited
for."""
FOR_LEARNERS, FOR_SERVERS = 0.5, 0.75
"""The shares of the grace period in which learners, which also halt, and answers of servers are
waited for; the rest is for saving."""
_LEAST_S = 0.5
"""Others get this long even then."""
_NAP_S, _LONGEST_NAP_S = 1e-3, 0.05
_AS_LONG = "as long as the halt leaves time"


def never(share: float) -> bool:
    """Return False: no halt is known."""
    del share
    return False


def to_standard_error(line: str) -> None:
    """Write a line into the learner's log; on a full disk only the line is lost."""
    with contextlib.suppress(OSError):
        print(f"dlctl: {line}", file=sys.stderr, flush=True)


@dataclass
class WaitPolicy:
    """How long a learner waits before it warns or gives up, and when a halt ends the wait."""

    timeout_s: float
    warn: Warn = to_standard_error
    late: Late = never

    def begin(self) -> Wait:
        """Begin to wait."""
        return Wait(self, time.monotonic())


@dataclass
class Wait:
    """One wait, which warns once at most."""

    wait_policy: WaitPolicy
    began_at: float
    said: bool = False

    def look(self, whom: Callable[[], str], *, may_be_gone: bool) -> None:
        """Warn once if the wait has taken too long.

        Args:
            whom: Returns whom this learner waits for, in words.
            may_be_gone: Whether those may never come: they are on other nodes, where nobody here
                sees who lives.

        Raises:
            LateError: A halt leaves no more time to wait for such.
        """
        waited_s = time.monotonic() - self.began_at
        if may_be_gone and waited_s > _LEAST_S and self.wait_policy.late(FOR_LEARNERS):
            raise LateError(f"has waited for {whom()} for {_AS_LONG}")
        if not self.said and waited_s > self.wait_policy.timeout_s:
            self.said = True
            self.wait_policy.warn(
                f"has waited for {whom()} for {self.wait_policy.timeout_s:g} s, and continues"
            )


def wait_until(
    true: Callable[[], bool], wait_policy: WaitPolicy, share: float = FOR_SERVERS
) -> bool:
    """Wait for a condition for as long as the policy allows; return whether it came true.

    Args:
        true: The condition; called often.
        wait_policy: How long.
        share: The share of a halt's grace period that may be used.
    """
    began_at, nap_s = time.monotonic(), _NAP_S
    while not true():
        waited_s = time.monotonic() - began_at
        if waited_s > wait_policy.timeout_s or (waited_s > _LEAST_S and wait_policy.late(share)):
            return False
        time.sleep(nap_s)
        nap_s = min(2 * nap_s, _LONGEST_NAP_S)
    return True


def how_long(wait_policy: WaitPolicy) -> str:
    """Return how long a failed wait lasted: the end of a sentence."""
    if wait_policy.late(FOR_SERVERS):
        return f"for {_AS_LONG}"
    return f"for {wait_policy.timeout_s:g} s"


def names(mask: int) -> str:
    """Return the ranks of a mask in words."""
    ranks = [str(rank) for rank in range(RANKS) if mask >> rank & 1]
    return f"rank {', '.join(ranks)}" if ranks else "the server of another node"
