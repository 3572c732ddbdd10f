"""Requests to end an attempt: files in `control/`, the scheduler's signals, the clock.

Only the supervisor reads them, and only the supervisor decides when to halt.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.contract import Plan, State, VerdictKind
from learner.job.batch import UNEXPLAINED, batch_system
from learner.job.context import ENDS_AT_VARIABLE
from learner.job.directives import is_superseded, is_there
from learner.job.outcome import BY_A_SIGNAL, WARNED, Outcome, Question
from learner.system.signals import HaltFlag

if TYPE_CHECKING:
    from watchdog.observers.api import BaseObserver as Observer

POLL_S = 1.0
CANCEL_GRACE_S = 10.0
SIGTERM_GRACE_S = 20.0
"""Slurm's KillWait is 30 s: after that Slurm kills every process of the job."""
_LEAST_GRACE_S = 5.0
LEAST_MARGIN_S = 10.0
"""The end of the learners, and the storing of results, take time beside the checkpoint."""
MOST_OF_THE_LIMIT = 0.25
"""A job that spends more of its time limit on saving comes no further."""
_EARLY_S = 60.0
"""How early Slurm's signal before the time limit may come: it looks every 30 s, and at limits of a
minute or two that would be half of the time."""
_GONE_S = 2.0
"""A network file system may lose sight of a file for a moment."""


@dataclass(frozen=True)
class EndRequest:
    """A request to end the attempt: a person's, the scheduler's, or the clock's."""

    action: str
    """`halt` or `stop`, as in a directive."""
    reason: str
    grace_s: float
    kind: VerdictKind = VerdictKind.REQUESTED
    terminated: bool = False
    """Whether the scheduler ends the whole job: each of its processes may have got SIGTERM."""

    @property
    def state(self) -> State:
        """Return the state in which the attempt ends if the request is met."""
        return State.CANCELLED if self.action == "stop" else State.HALTED


class Control:
    """Watches for requests to end the attempt.

    A request that was seen once stays in force; a cancel overrides a halt.
    """

    def __init__(
        self,
        job_dir: Path,
        plan: Plan,
        signals: HaltFlag,
        clock: Callable[[], float] = time.monotonic,
        attempt: int = 1,
    ) -> None:
        self._job_dir = job_dir
        self._attempt = attempt
        # Who removes a job directory removes these, too; a purge of old files spares them.
        names = (contract.claim(attempt), contract.submit_begin(attempt))
        present = (job_dir / name for name in names if is_there(job_dir / name))
        self._proof = next(present, job_dir / contract.attempt_dir(attempt))
        self._plan, self._signals, self._clock = plan, signals, clock
        self._ends_at = _deadline(plan, clock())
        self._request: EndRequest | None = None
        self._question: Question | None = None
        self._handled_signals: frozenset[int] = frozenset()
        self._changed = threading.Event()
        self._look_at = 0.0
        self._missing_since: float | None = None
        self.saving_s: float | None = None
        """How long it takes to save; None: not known, and the plan's margin counts."""
        self.gone = False
        """Whether somebody has removed the job directory: then nothing may be written there."""
        self._observer: Observer | None = None

    def __enter__(self) -> Control:
        folder = self._job_dir / contract.CONTROL
        folder.mkdir(exist_ok=True)
        self._observer = _observe(folder, self._changed)
        return self

    def __exit__(self, *_: object) -> None:
        if self._observer is not None:
            self._observer.stop()
            self._observer.join()

    def wait(self, timeout_s: float) -> None:
        """Wait for a change in `control/`, for at most `timeout_s`."""
        if self._changed.wait(timeout_s):
            self._changed.clear()
            self._look_at = 0.0

    def request(self, *, fresh: bool = False) -> EndRequest | None:
        """Return the request in force, or None.

        Args:
            fresh: look at the files now, even if that was done a moment ago.
        """
        if fresh:
            self._look_at = 0.0
        if self._request is None or self._request.action != "stop":
            self._request = self._cancel() or self._request or self._halt()
        if self._request is not None and signal.SIGTERM in self._signals.received:
            self._request = replace(self._request, terminated=True)
        received = frozenset(self._signals.received)
        if received != self._handled_signals:
            self._handled_signals = received  # SIGTERM may follow a warning, minutes later
            self._question = Question(batch_system(self._plan), self._early_s())
        return self._request

    def explain(self, outcome: Outcome) -> Outcome:
        """Return the outcome with what the scheduler says, if it may have ended the learners."""
        if self._question is None:
            # At a time limit Slurm signals the learners' steps, and not the job script.
            by_itself = outcome.state is State.HALTED and self._request is None
            if by_itself or outcome.kind is VerdictKind.SCHEDULER:
                self._question = Question(batch_system(self._plan), self._early_s())
        return outcome if self._question is None else self._question.explain(outcome)

    def end(self, action: EndRequest) -> None:
        """End the attempt for a reason of the supervisor's, unless somebody asked before."""
        if self._request is None:
            grace_s = action.grace_s or self._grace_s()
            self._request = replace(action, grace_s=grace_s)

    def left_s(self) -> float | None:
        """Return how long the job may still run; None: no limit is known."""
        return None if self._ends_at is None else self._ends_at - self._clock()

    def cancelled(self) -> bool:
        """Return whether the job directory holds a cancel request now."""
        return self._there(contract.CANCEL_REQUEST)

    def _cancel(self) -> EndRequest | None:
        if self._clock() < self._look_at and not self._signals:
            return None
        if self._removed():
            return EndRequest("stop", "its job directory is gone", 0.0, VerdictKind.SUPERSEDED)
        if self.cancelled():
            kind = VerdictKind.CANCELLED
            return EndRequest("stop", "cancelled on request", CANCEL_GRACE_S, kind)
        if is_superseded(self._job_dir, self._attempt):
            # After a network partition this node may still run an attempt that was given up.
            reason = "a later attempt has taken over"
            return EndRequest("stop", reason, 0.0, VerdictKind.SUPERSEDED)
        return None

    def _removed(self) -> bool:
        """Return whether the attempt's claim has been missing for at least `_GONE_S`."""
        try:
            self._proof.stat()
        except FileNotFoundError:
            now = self._clock()
            self._missing_since = now if self._missing_since is None else self._missing_since
            self.gone = now - self._missing_since >= _GONE_S
        except OSError:  # the file system does not answer, which proves nothing
            return self.gone
        else:
            self._missing_since, self.gone = None, False
        return self.gone

    def removed(self) -> bool:
        """Return whether the job directory is gone; wait until that is certain."""
        while not self._removed() and self._missing_since is not None:
            time.sleep(0.1)
        return self.gone

    def _halt(self) -> EndRequest | None:
        now = self._clock()
        if signal.SIGTERM in self._signals.received:
            grace_s = min(SIGTERM_GRACE_S, self._grace_s())
            return EndRequest("halt", UNEXPLAINED, grace_s, VerdictKind.SCHEDULER)
        if self._signals and not self._is_early(now):
            if self._ends_at is not None and now < self._ends_at - self._early_s():
                # `dlctl halt` signals where it can't write; a person may, too.
                return EndRequest("halt", BY_A_SIGNAL, self._grace_s())
            return EndRequest("halt", WARNED, self._grace_s(), VerdictKind.TIME_LIMIT)
        if self._ends_at is not None and now >= self._ends_at - self._margin_s():
            reason = "the time limit is near"
            return EndRequest("halt", reason, self._grace_s(), VerdictKind.TIME_LIMIT)
        if now >= self._look_at:
            self._look_at = now + POLL_S
            if self._there(contract.HALT_REQUEST):
                return EndRequest("halt", "halted on request", self._grace_s())
        return None

    def _there(self, name: str) -> bool:
        path = self._job_dir / name
        contract.refresh(path.parent)
        return is_there(path)

    def _is_early(self, now: float) -> bool:
        """Return whether Slurm's signal came while the clock says that there is time to train."""
        if self._ends_at is None:
            return False
        return self._ends_at - self._early_s() <= now < self._ends_at - self._margin_s()

    def _early_s(self) -> float:
        return float(self._plan.resources.halt_margin_s or 30) + _EARLY_S

    def _margin_s(self) -> float:
        planned_s = float(self._plan.resources.halt_margin_s or 30)
        if self.saving_s is None:
            return planned_s
        wanted_s = 3 * self.saving_s + LEAST_MARGIN_S
        most_s = max(2 * planned_s, (self._plan.resources.time_s or 0) * MOST_OF_THE_LIMIT)
        return min(most_s, wanted_s)

    def _grace_s(self) -> float:
        if self._ends_at is None:
            return self._margin_s()
        left_s = self._ends_at - self._clock() - _LEAST_GRACE_S
        return max(_LEAST_GRACE_S, min(self._margin_s(), left_s))


def _observe(folder: Path, changed: threading.Event) -> Observer | None:
    """Set an event at each change in a folder; without watchdog, `request` looks by itself.

    The Python of a container's host has the standard library only.
    """
    try:
        from watchdog.events import FileSystemEventHandler
        from watchdog.observers.polling import PollingObserver
    except ModuleNotFoundError:
        return None
    handler = FileSystemEventHandler()
    handler.on_any_event = lambda event: changed.set()  # type: ignore[method-assign] # noqa: ARG005
    observer = PollingObserver(timeout=POLL_S)  # inotify sees no other node's writes
    observer.schedule(handler, str(folder))
    observer.start()
    return observer


def _deadline(plan: Plan, now: float) -> float | None:
    """Return when the job ends, on the clock of `now`: at the plan's limit or the system's."""
    limits = [] if plan.resources.time_s is None else [now + plan.resources.time_s]
    own = os.environ.get(ENDS_AT_VARIABLE, "")
    for end in (batch_system(plan).ends_at(), float(own) if own.isdecimal() else None):
        if end is not None and end > time.time():
            limits.append(now + end - time.time())
    return min(limits, default=None)
