"""A learner or a node's server as the supervisor sees it: its step, its deaths and restarts."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path

from dlctl import contract
from dlctl.contract import State, Status
from dlctl.contract.metrics import BATCHES, RESTARTS
from learner.job.outcome import says_away, says_busy, says_full
from learner.job.status import UNSAVED
from learner.supervisor.statuses import Statuses
from learner.supervisor.steps import Step
from psrv.cursor.base import CursorError
from psrv.cursor.overseer import reported

LEARNER_DEATHS = 3
"""A learner is given up after this many deaths in a row without a finished chunk in between."""
SERVER_DEATHS = 5
LIVED_S = 600.0
"""A server that serves for at least this long has made progress: a server that always dies sooner
is given up, one that dies less often does no harm. Learners that run out of memory get the same
limit."""
AWAY_WAIT_S = 5.0
"""How long to wait before retrying a step that could not begin."""
BUSY_TRIES = 24
"""How many retries, over two minutes, if Slurm has no memory: an ended step may still hold it."""
SHORT_S, SHORT_LIVES = 60.0, 20
"""A learner that dies within SHORT_S, SHORT_LIVES times in a row, is given up, too, even if it
makes progress."""
SETTLED_S = 3.0
"""A shared file system may show a status this late."""


class Worker:
    """A process that is restarted when it dies, with the statuses that describe it.

    Args:
        role: the role in its statuses, `learner` or `server`.
        start: starts its step; its argument is how often the worker was started before.
    """

    def __init__(
        self, name: str, node: int, host: str, deaths: int, start: Callable[[int], Step],
        statuses: Statuses, role: str, rank: int,
    ) -> None:  # fmt: skip
        self.name, self.node, self.host = name, node, host
        self.restarts = Restarts(deaths)
        self.starts = 0
        self.over = False
        """Whether the worker has ended for good."""
        self.lost = ""
        """Why the worker was given up: the predicate of a sentence about it."""
        self.step: Step | None = None
        self.start_at = 0.0
        self._busy = BUSY_TRIES  # no memory at the first start: retries would not help
        self.started_at = 0.0
        self._start = start
        self.rank = rank
        self._statuses, self._role = statuses, role

    # Its step -----------------------------------------------------------------------------------

    def start_if_due(self, now: float) -> None:
        """Start the worker's step once the wait after a death is over.

        Raises:
            UserFault: the step can't be started.
        """
        if self.step is None and now >= self.start_at:
            self.step = self._start(self.starts)
            self.starts += 1
            self.started_at = now

    @property
    def has_ended(self) -> bool:
        """Return whether the worker's step has ended."""
        return self.step is not None and self.step.exit_code is not None

    @property
    def runs(self) -> bool:
        """Return whether the worker's step is running."""
        return self.step is not None and self.step.exit_code is None

    def words(self) -> list[str]:
        """Return the last lines that the launcher of the worker's step printed."""
        return [] if self.step is None else self.step.words()

    def died(self, *, progress: bool) -> float | None:
        """Note a death; return after how many seconds to restart the worker; None: give it up.

        A step that could not begin because Slurm's controller was away does not count as a death.
        Neither, for a while, does one that got no memory: the step before it may still hold it.
        (srun may print the same lines about a step that had begun, but its status has a process.)
        """
        status = self.status()
        words = [] if status is not None and status.pid else self.words()
        if says_away(words):
            return AWAY_WAIT_S
        self._busy = self._busy + 1 if says_busy(words) else 0
        if 0 < self._busy <= BUSY_TRIES:
            return AWAY_WAIT_S
        return self.restarts.died(progress=progress)

    def wait(self, now: float, seconds: float) -> None:
        """Drop the step that ended; the next one is due in this many seconds."""
        self.step, self.start_at = None, now + seconds

    # Its status ---------------------------------------------------------------------------------

    def status(self) -> Status | None:
        """Return the worker's newest status; None if it never wrote one."""
        return self._statuses.read(self._role, self.rank)

    def say_waiting(self, reason: str) -> None:
        """Rule that the worker will be restarted."""
        self._rule(state=State.DEPLOYING, reason=reason, pid=0, exit_code=None, signal=None,
                   last_lines=[])  # fmt: skip

    def close(self, state: State, reason: str) -> None:
        """Rule how the worker ended, whatever it still writes."""
        self._rule(state=state, reason=reason)

    def presume(self, state: State, reason: str) -> None:
        """Say how the worker ended where it left no word."""
        if not (known := self._known()).state.final:
            self._statuses.presume(dataclasses.replace(known, state=state, reason=reason))

    def _rule(self, **changes: object) -> None:
        self._statuses.rule(dataclasses.replace(self._known(), **changes))  # type: ignore[arg-type]

    def _known(self) -> Status:
        old = self.status() or Status(
            self._role, self.rank, self._statuses.attempt, State.DEPLOYING
        )
        return dataclasses.replace(old, host=old.host or self.host)


class ServerWorker(Worker):
    """The server of one node."""

    def __init__(
        self, node: int, host: str, start: Callable[[int], Step], statuses: Statuses
    ) -> None:
        name = f"the server on {host}"
        super().__init__(name, node, host, SERVER_DEATHS, start, statuses, "server", node)
        self.has_served = False
        """Whether a server that died had served, so that its shared memory is still there."""

    @property
    def exit_code(self) -> int | None:
        """Return the exit code of the server, or that of its step."""
        failed = self.failed()
        if failed is not None:
            return failed.exit_code
        return None if self.step is None else self.step.exit_code

    def failed(self) -> Status | None:
        """Return the server's status if it says that it failed."""
        status = self.status()
        return status if status is not None and status.state is State.FAILED else None

    def did_something(self, now: float) -> bool:
        """Return whether the server has served, for at least `LIVED_S`."""
        status = self.status()
        serves = status is not None and status.state is State.TRAINING
        self.has_served = self.exit_code != 0 and (self.has_served or serves)
        return serves and now - self.started_at >= LIVED_S


class LearnerWorker(Worker):
    """A learner, whose files show how it ended and what it did."""

    def __init__(
        self, rank: int, node: int, host: str, start: Callable[[int], Step],
        statuses: Statuses, job_dir: Path,
    ) -> None:  # fmt: skip
        super().__init__(
            f"learner {rank} on {host}", node, host, LEARNER_DEATHS, start, statuses,
            "learner", rank,
        )  # fmt: skip
        attempt = statuses.attempt
        self._ended_at: float | None = None
        self._short = self._full = 0
        self._number_file = job_dir / contract.cursor_learner_file(attempt, rank)
        self._cursor_file = job_dir / contract.cursor_file(attempt)
        self._restarted_file = job_dir / contract.restarted_file(attempt)

    def is_settled(self, status: Status | None, now: float) -> bool:
        """Return whether the status of an ended step is final, or will not change any more."""
        self._ended_at = now if self._ended_at is None else self._ended_at
        final = status is not None and status.state.final
        return final or now - self._ended_at >= SETTLED_S

    def say_waiting(self, reason: str) -> None:
        """Rule that the learner will be restarted, and how often it was started."""
        self._ended_at = None
        old = self.status()
        metrics = {**(old.metrics if old else {}), RESTARTS: float(self.starts)}
        self._rule(state=State.DEPLOYING, reason=reason, pid=0, exit_code=None, signal=None,
                   last_lines=[], metrics=metrics)  # fmt: skip

    # Its work -----------------------------------------------------------------------------------

    def did_something(self, status: Status | None) -> bool:
        """Return whether the learner has trained on a chunk since its start.

        The step count in its status is the whole training's, and proves nothing about one learner.
        """
        if status is not None and status.pid and (status.metrics.get(BATCHES) or 0) > 0:
            return True
        with contextlib.suppress(CursorError):
            return bool((reported(self._cursor_file) or {}).get(self._number()))
        return False

    def dies_in_vain(self, status: Status | None, now: float) -> str:
        """Note a death; return how often it has died, if another restart would end the same way.

        Each life may have made progress: a chunk or two, before the kernel killed the learner.
        """
        if status is None or not status.pid:  # the learner had not begun
            return ""
        lived_s = now - self.started_at
        self._short = self._short + 1 if lived_s < SHORT_S else 0
        self._full = self._full + 1 if lived_s < LIVED_S and says_full(self.words()) else 0
        if self._full >= LEARNER_DEATHS:
            within = f"within {LIVED_S / 60:g} min of its start"
            return f"{self._full} times in a row, each {within}"
        if self._short >= SHORT_LIVES:
            return f"{self._short} times in a row, each within {SHORT_S:g} s of its start"
        return ""

    def take_number(self) -> int:
        """Return and forget the number that the learner drew from the cursor; 0: it drew none."""
        number = self._number()
        with contextlib.suppress(OSError):
            self._number_file.unlink(missing_ok=True)
        return number

    def tell_irregular(self) -> bool:
        """Announce to all learners, present and future, that this one has died.

        Until they know, some may wait for the turn of a learner that will never take it.

        Returns:
            False if the announcement can't be written now: a full disk, a file system that is away.
        """
        with contextlib.suppress(OSError):
            self._restarted_file.touch()
            return True
        return False

    def _number(self) -> int:
        try:
            return int(self._number_file.read_text())
        except (OSError, ValueError):
            return 0


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
