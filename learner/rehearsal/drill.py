"""Disturb a learner while it trains, as a rehearsal wants."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable

from dlctl.contract import Rehearsal, Stage, Status

KILLED = "the rehearsal kills learner 0"
WAITS = "the rehearsal waits for the halt"
_SIGNAL_S = 60.0
_POLL_S = 0.01


class Drill:
    """Ends the loop after the rehearsal's steps, and disturbs it before; by default does nothing.

    Args:
        tell: tells the supervisor, and the metrics, what happens at this step.
        halted: whether the signal to save and stop has come.
    """

    def __init__(
        self, rehearsal: Rehearsal | None, rank: int,
        tell: Callable[[str], None], halted: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._rehearsal, self._rank, self._tell, self._halted = rehearsal, rank, tell, halted
        self._waited = False

    @property
    def active(self) -> bool:
        """Return whether this is a rehearsal."""
        return self._rehearsal is not None

    def over(self, step: int) -> bool:
        """Return whether all steps of the rehearsal are done."""
        return self._rehearsal is not None and step >= self._rehearsal.steps

    def disturb(self, step: int) -> None:
        """Wait for the halt, or die, if that is due after this step."""
        if self._rehearsal is None or self._rehearsal.at is None or step < self._rehearsal.at:
            return
        if self._rehearsal.stage == Stage.KILL:
            self._kill()
        elif self._rehearsal.stage == Stage.HALT and not self._waited:
            self._wait()

    def _kill(self) -> None:
        if self._rank == 0:  # the other learners find out as they would if its node had died
            self._tell(KILLED)
            os.kill(os.getpid(), signal.SIGKILL)

    def _wait(self) -> None:
        """Wait for the signal: else a fast training would have ended before it comes."""
        self._waited = True
        self._tell(WAITS)
        until = time.monotonic() + _SIGNAL_S
        while not self._halted() and time.monotonic() < until:
            time.sleep(_POLL_S)


def halt_is_due(rehearsal: Rehearsal | None, statuses: Iterable[Status]) -> bool:
    """Return whether the learners have come to the step at which the supervisor halts them."""
    if rehearsal is None or rehearsal.stage != Stage.HALT or rehearsal.at is None:
        return False
    steps = [status.step for status in statuses if status.rank == 0 and status.step is not None]
    return bool(steps) and steps[0] >= rehearsal.at
