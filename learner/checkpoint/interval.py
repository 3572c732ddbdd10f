"""When the next checkpoint is due by the clock: a fixed time, or Young's and Daly's formula."""

from __future__ import annotations

from collections.abc import Callable

from dlctl.contract import CheckpointPolicy
from dlctl.contract.measured.interval import sensible_interval_s

_FIRST_S = 60.0
"""The interval until the first checkpoint has shown the cost."""
_LOOK_AGAIN_S = 5.0
_RETRY_S = 60.0
"""How long after a failed checkpoint to retry; later if that would cost more than 5 %."""


class Interval:
    """The clock of a checkpoint policy. Only rank 0's decides."""

    def __init__(self, policy: CheckpointPolicy, clock: Callable[[], float]) -> None:
        self._policy = policy
        self._clock = clock
        self._saved_at = clock()
        self._cost_s: float | None = None
        self._write_s = 0.0
        self._put_off_at: float | None = None
        self._retry_at: float | None = None

    def wanted_s(self) -> float | None:
        """Return the time between two checkpoints; None if the policy does not use the clock."""
        if not self._policy.auto:
            return self._policy.every_s
        if self._cost_s is None:
            return _FIRST_S
        return sensible_interval_s(self._cost_s, self._policy.mtbf_s, self._write_s)

    def overdue(self, *, busy: bool) -> bool:
        """Return whether a checkpoint should be taken at the next step boundary.

        While the last checkpoint is being written, this is True only now and then, so that the
        learners can exchange its result.
        """
        now, wanted_s = self._clock(), self.wanted_s()
        due = wanted_s is not None and now - self._saved_at >= wanted_s
        if self._put_off_at is not None:
            return not busy or now - self._put_off_at >= _LOOK_AGAIN_S
        if self._retry_at is not None:
            due = due or now >= self._retry_at
        return due

    def put_off(self) -> None:
        """Note that a checkpoint that was due had to be postponed."""
        self._put_off_at = self._clock()

    def failed(self) -> None:
        """Note that the last checkpoint could not be written."""
        self._retry_at = self._clock() + max(_RETRY_S, 20 * (self._cost_s or 0.0))

    def missed(self) -> None:
        """Note that a checkpoint that was due could not be taken."""
        self._saved_at, self._put_off_at = self._clock(), None
        self.failed()

    def saved(self, cost_s: float, write_s: float) -> None:
        """Note that a checkpoint was taken, and its cost.

        Args:
            cost_s: how long training stopped for this checkpoint.
            write_s: how long writing the last checkpoint took.
        """
        self._saved_at = self._clock()
        self._cost_s, self._write_s = cost_s, write_s
        self._put_off_at = self._retry_at = None
