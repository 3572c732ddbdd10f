"""When a process that died is started again, and when it is given up. Pure."""

from __future__ import annotations

from dlctl.contract import State, Status
from learner.job.status import UNSAVED

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0
VANISHED = "vanished"
"""How a learner died that left no word, nor its watchdog: it may even live."""


class Restarts:
    """Counts the deaths of one process that came in a row, without anything done in between."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.in_a_row = 0

    def died(self, *, progress: bool) -> float | None:
        """Return after how many seconds to start it again; None: it is given up.

        Args:
            progress: it has done something since it was started.
        """
        self.in_a_row = 0 if progress else self.in_a_row + 1
        if self.in_a_row >= self.limit:
            return None
        wait_s: float = FIRST_WAIT_S * 2 ** max(0, self.in_a_row - 1)
        return min(LONGEST_WAIT_S, wait_s)


def is_user_error(status: Status) -> bool:
    """Return whether a learner failed with an exit code: starting it again would not help."""
    return status.state is State.FAILED and status.signal is None


def is_too_slow(status: Status) -> bool:
    """Return whether its watchdog killed a learner that was to save and stop."""
    return status.state is State.FAILED and status.reason == UNSAVED


def how_it_died(status: Status | None) -> str:
    """Return what is known of a death, in a few words."""
    if status is None or not status.state.final:
        return VANISHED
    if status.signal is not None:
        return f"was killed by signal {status.signal}"
    return f"ended ({status.reason or status.state})"
