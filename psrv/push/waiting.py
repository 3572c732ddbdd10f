"""Limits a learner's wait for others, and warns about it.

A training must not stand still in silence, and a halt must not be lost to servers that are gone.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
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
SHORT_NAPS_S, LONG_NAPS_S = (20e-6, 1e-3), (1e-3, 0.05)
"""The first and the longest pause between polls: of work in memory, and of other processes."""
_LOOK_EVERY_S = 0.05
_AS_LONG = "as long as the halt leaves time"


def naps(first_s: float, longest_s: float) -> Iterator[float]:
    """Yield the lengths of pauses between polls, each twice the last one, up to a limit."""
    while True:
        yield first_s
        first_s = min(2 * first_s, longest_s)


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
    """The limits after which a waiting learner warns or gives up, or a halt ends the wait."""

    timeout_s: float
    warn: Warn = to_standard_error
    late: Late = never

    def begin(self, naps_s: tuple[float, float] = LONG_NAPS_S) -> Wait:
        """Begin to wait, with pauses of these lengths, the first and the longest."""
        return Wait(self, time.monotonic(), naps(*naps_s))


@dataclass
class Wait:
    """One wait, which warns once at most."""

    wait_policy: WaitPolicy
    began_at: float
    naps_s: Iterator[float]
    has_warned: bool = False
    look_at: float = 0.0

    @property
    def waited_s(self) -> float:
        """Return how long this wait has lasted."""
        return time.monotonic() - self.began_at

    def nap(self) -> bool:
        """Pause; return whether it is time to look after those that are waited for."""
        time.sleep(next(self.naps_s))
        now = time.monotonic()
        due = now > (self.look_at or self.began_at + _LOOK_EVERY_S)
        if due:
            self.look_at = now + _LOOK_EVERY_S
        return due

    def look(self, whom: Callable[[], str], *, may_be_gone: bool) -> None:
        """Warn once if the wait has taken too long.

        Args:
            whom: Returns whom this learner waits for, in words.
            may_be_gone: Whether those may never come: they are on other nodes, where nobody here
                sees who lives.

        Raises:
            LateError: A halt leaves no more time to wait for such.
        """
        waited_s = self.waited_s
        if may_be_gone and waited_s > _LEAST_S and self.wait_policy.late(FOR_LEARNERS):
            raise LateError(f"has waited for {whom()} for {_AS_LONG}")
        if not self.has_warned and waited_s > self.wait_policy.timeout_s:
            self.has_warned = True
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
    wait = wait_policy.begin()
    while not true():
        waited_s = wait.waited_s
        if waited_s > wait_policy.timeout_s or (waited_s > _LEAST_S and wait_policy.late(share)):
            return False
        wait.nap()
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
