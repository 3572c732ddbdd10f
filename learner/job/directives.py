"""Read the supervisor's directive, watch whether it lives, and find the orders of people.

Learner 0 finds the orders of people in `control/`. An order takes effect at the end of a step. Its
answer keeps which step that was, so that an attempt that repeats the step obeys at the same one.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from dlctl import contract
from dlctl.contract import (
    ContractError,
    Directive,
    Homes,
    Order,
    OrderAnswer,
    directive_file,
    homes_file,
    readable_record,
    refresh,
    status_file,
    submit_begin,
    to_json,
)

POLL_S = 0.3
SUPERVISOR_LOST_S = 120.0
"""After this long without the supervisor's heartbeat, nobody would read a result: stop."""
SUPERVISOR_FRESH_S = 12.0
"""More than two intervals of its heartbeat, and less than Slurm's time from SIGTERM to SIGKILL."""
STACKS = "stacks"
"""The action of a directive that ends nothing: the watchdogs save their learners' stacks."""
GIVEN_UP, ENDED = "its node was given up", "the training has ended"
SUPERVISOR_LOST_VARIABLE = "DLCTL_SUPERVISOR_LOST_S"


def is_there(path: Path) -> bool:
    """Return whether a path exists; False, too, while the file system does not answer.

    `Path.exists` would raise in that case, and a process that merely looks for a request must not
    die of it.
    """
    return os.path.exists(path)  # noqa: PTH110


def is_gone(path: Path) -> bool:
    """Return whether a path certainly does not exist: a failing file system proves nothing."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def is_superseded(job_dir: Path, attempt: int) -> bool:
    """Return whether a later attempt has begun: from then on this one may publish nothing.

    Everything that an attempt publishes for others, and not only into files of its own, is checked
    by this at the moment of publishing: a node that was cut from the network may compute on for
    hours, and come back.
    """
    later = job_dir / submit_begin(attempt + 1)
    refresh(later.parent)
    return is_there(later)


class HaltTime:
    """Return whether a given share of a halt's grace period is over; see psrv.push.waiting.

    Calls are cheap: the directive is read at most every `POLL_S`. The clock must agree with the
    supervisor's only for learner 0, which saves and runs on the supervisor's node.
    """

    def __init__(self, job_dir: Path, attempt: int) -> None:
        self._directive = job_dir / directive_file(attempt)
        self._look_at = 0.0
        self._began_at = self._grace_s = float("inf")

    def __call__(self, share: float) -> bool:
        """Return whether this share of the grace period is over; False without a halt."""
        now = time.monotonic()
        if self._grace_s == float("inf") and now >= self._look_at:
            self._look_at = now + POLL_S
            directive = read_directive(self._directive)
            if directive is not None and directive.action != STACKS:
                self._began_at = now - max(0.0, time.time() - directive.issued_at)
                self._grace_s = directive.grace_s
        return now >= self._began_at + share * self._grace_s


def read_directive(path: Path) -> Directive | None:
    """Return the supervisor's directive, or None if there is none that can be read."""
    refresh(path.parent)
    return readable_record(Directive, path)


class Outside:
    """Polls for the directive, the supervisor's heartbeat, and the parent process.

    Args:
        node: the index of this node in the job, if it can be given up alone.
    """

    def __init__(
        self, job_dir: Path, attempt: int, supervisor_lost_s: float | None = None,
        node: int | None = None,
    ) -> None:  # fmt: skip
        self._node = node
        self._homes = job_dir / homes_file(attempt)
        self._successor = job_dir / submit_begin(attempt + 1)
        self._directive = job_dir / directive_file(attempt)
        self._supervisor = job_dir / status_file(attempt, "supervisor", 0)
        default_s = float(os.environ.get(SUPERVISOR_LOST_VARIABLE) or SUPERVISOR_LOST_S)
        self._lost_s = default_s if supervisor_lost_s is None else supervisor_lost_s
        self._parent = os.getppid()
        self._changed_ns = 0
        self._silent_s = 0.0
        self._looked = time.monotonic()

    def directive(self) -> Directive | None:
        """Return the supervisor's directive, or None."""
        return read_directive(self._directive)

    def expelled(self) -> str:
        """Return why this node is out of the training, or an empty text if it is not.

        A node that returns after a network partition may find that the others went on without it.
        """
        if self._node is None:
            return ""
        homes = readable_record(Homes, self._homes)
        if homes is not None and self._node in homes.lost_nodes:
            return GIVEN_UP
        if is_there(self._successor):
            return "a later attempt has taken over"
        return ENDED if homes is not None and homes.ended else ""

    @property
    def supervisor_is_lost(self) -> bool:
        """Return whether the supervisor has been silent for too long."""
        return self._silent_s > self._lost_s

    @property
    def supervisor_lives(self) -> bool:
        """Return whether `abandoned`, called regularly, saw a recent heartbeat."""
        return bool(self._changed_ns) and self._silent_s < SUPERVISOR_FRESH_S

    def abandoned(self) -> str:
        """Return why nobody waits for this process any more, or an empty text."""
        if os.getppid() != self._parent:
            return "the process that launched it is gone"
        self._listen()
        if self.supervisor_is_lost:
            return f"no heartbeat from the supervisor for {self._silent_s:.0f} s"
        return ""

    def _listen(self) -> None:
        now = time.monotonic()
        # Capped: a job that was suspended and resumed must not count the pause as silence.
        passed = min(now - self._looked, 2 * POLL_S)
        self._looked = now
        try:
            changed_ns = self._supervisor.stat().st_mtime_ns
        except OSError:
            changed_ns = self._changed_ns
        if changed_ns != self._changed_ns:
            self._changed_ns, self._silent_s = changed_ns, 0.0
        elif self._changed_ns:
            self._silent_s += passed


LOOK_S = 1.0
_NAME = re.compile(r"order-(\d+)\.json")


class Orders:
    """The orders that have not taken effect yet; only learner 0 has one of these.

    Looking costs one read of a small folder, at most once in `LOOK_S`.
    """

    def __init__(
        self, job_dir: Path, attempt: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._job_dir, self._attempt, self._clock = job_dir, attempt, clock
        self._look_at = -float("inf")
        self._known: dict[int, tuple[Order, OrderAnswer | None]] = {}

    def due(self, obeyed: int, step: int) -> int:
        """Return the number of the newest order that takes effect after this step.

        Args:
            obeyed: the newest order that took effect before.
        """
        if self._clock() >= self._look_at:
            self._look_at = self._clock() + LOOK_S
            self._look(obeyed)
        number = obeyed
        while (found := self._known.get(number + 1)) is not None:
            if found[1] is not None and found[1].step > step:
                break  # it took effect later, in an attempt whose steps are repeated now
            number += 1
        return number

    def between(self, obeyed: int, newest: int) -> dict[int, Order]:
        """Return the orders after `obeyed`, up to `newest`, by number."""
        return {number: self._known[number][0] for number in range(obeyed + 1, newest + 1)}

    def answer(self, number: int, step: int, problem: str) -> None:
        """Keep when an order took effect, for people and for later attempts."""
        _, before = self._known.pop(number)
        if before is None and not is_superseded(self._job_dir, self._attempt):
            path = self._job_dir / contract.order_answer(number)
            with contextlib.suppress(OSError):  # a full disk
                contract.write_whole(path, to_json(OrderAnswer(self._attempt, step, problem)))

    def _look(self, obeyed: int) -> None:
        names: list[str] = []
        with contextlib.suppress(OSError):
            names = os.listdir(self._job_dir / contract.CONTROL)  # noqa: PTH208
        for match in filter(None, map(_NAME.fullmatch, names)):
            number = int(match[1])
            if number <= obeyed or number in self._known:
                continue
            # A file that can't be read yet is still being written: it is read next time.
            with contextlib.suppress(OSError, ContractError):
                order = contract.read_record(Order, self._job_dir / contract.order_file(number))
                path = self._job_dir / contract.order_answer(number)
                if order is not None:
                    self._known[number] = order, contract.read_record(OrderAnswer, path)
