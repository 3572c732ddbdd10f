"""The restart policy: when to restart a process that died, and when to give it up. Pure."""

from __future__ import annotations

from dlctl.contract import State, Status
from learner.job.status import UNSAVED

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0
VANISHED = "vanished"
"""How a learner died if neither it nor its watchdog reported an end: it may even be alive."""


class Restarts:
    """Counts how often in a row one process died without progress in between."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.in_a_row = 0

    def died(self, *, progress: bool) -> float | None:
        """Note a death; return after how many seconds to restart the process; None: give it up.

        Args:
            progress: whether the process made progress since its start.
        """
        self.in_a_row = 0 if progress else self.in_a_row + 1
        if self.in_a_row >= self.limit:
            return None
        wait_s: float = FIRST_WAIT_S * 2 ** max(0, self.in_a_row - 1)
        return min(LONGEST_WAIT_S, wait_s)


def is_user_error(status: Status) -> bool:
    """Return whether a learner failed with an exit code: a restart would not help."""
    return status.state is State.FAILED and status.signal is None


def is_too_slow(status: Status) -> bool:
    """Return whether the watchdog killed the learner because it did not save and stop in time."""
    return status.state is State.FAILED and status.reason == UNSAVED


def how_it_died(status: Status | None) -> str:
    """Return in a few words how the process with this status died."""
    if status is None or not status.state.final:
        return VANISHED
    if status.signal is not None:
        return f"was killed by signal {status.signal}"
    return f"ended ({status.reason or status.state})"
