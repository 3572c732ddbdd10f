"""The nodes of a job: which of them it has lost, and the clean-up of those that servers left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from dlctl.contract import Plan
from learner.errors import UserFault
from learner.supervisor.steps import Step, on_host, step_log
from learner.system.segments import segment_folder

ASK_EVERY_S = 5.0


class Nodes:
    """The job's hosts; asks in the background which of them it still has.

    Args:
        ask_left: returns the hosts that are left, None if that is not known; may take long.
    """

    def __init__(self, hosts: list[str], ask_left: Callable[[], list[str] | None]) -> None:
        self.hosts, self._ask_left = hosts, ask_left
        self._thread: threading.Thread | None = None
        self._asked_at = -ASK_EVERY_S
        self._gone: set[int] = set()

    def ask(self) -> None:
        """Ask now, unless the last question is open or less than `ASK_EVERY_S` old."""
        is_open = self._thread is not None and self._thread.is_alive()
        if not is_open and time.monotonic() - self._asked_at >= ASK_EVERY_S:
            self._asked_at = time.monotonic()
            self._thread = threading.Thread(target=self._ask, name="left hosts", daemon=True)
            self._thread.start()

    def _ask(self) -> None:
        left = self._ask_left() or []
        # The script runs on this host: an answer that leaves the host out can't be right.
        if self.hosts[0] in left:
            self._gone |= {node for node, host in enumerate(self.hosts) if host not in left}

    def gone(self) -> set[int]:
        """Return the nodes that the job has lost, by the answers so far."""
        return self._gone


_AGAIN_S = 1.0


class Cleaning:
    """The clean-up steps on all nodes that may hold left-over shared memory."""

    def __init__(
        self,
        plan: Plan,
        job_dir: Path,
        attempt: int,
        hosts: Iterable[str],
        say: Callable[[str], None],
    ) -> None:
        assert plan.parameter_server is not None
        self._plan, self._say = plan, say
        self._argv = plan.parameter_server.argv
        self._program = ["learner.system.segments", plan.training_id, str(attempt)]
        self._log = step_log(job_dir, attempt, "launcher")
        self._folder = segment_folder(plan.training_id, attempt)
        self._steps: dict[str, Step | None] = dict.fromkeys(hosts)
        self._due = dict.fromkeys(self._steps, 0.0)
        self._start_error = ""

    @property
    def running(self) -> list[Step]:
        """Return the clean-up steps that are still running."""
        return [step for step in self._steps.values() if step and step.exit_code is None]

    def poll(self, now: float, *, late: bool) -> bool:
        """Start the steps that are due; return whether nothing is left to do.

        Args:
            late: start no more steps, and warn about each node that is not clean.
        """
        for host, step in list(self._steps.items()):
            if step is not None and step.exit_code is None:
                continue
            if step is not None and step.exit_code == 0:
                del self._steps[host]
            elif late:
                del self._steps[host]
                self._warn_of_leftovers(host, step)
            elif now >= self._due[host]:
                self._due[host] = now + _AGAIN_S
                self._try(host)
        return not self._steps

    def _try(self, host: str) -> None:
        try:
            self._steps[host] = Step(
                self._plan, on_host(self._argv, host), self._program, self._log
            )
        except UserFault as fault:
            self._steps[host], self._start_error = None, fault.message

    def _warn_of_leftovers(self, host: str, step: Step | None) -> None:
        words = step.words() if step is not None else [self._start_error]
        why = f" ({words[-1].rstrip('.')})" if words and words[-1] else ""
        self._say(
            f"The shared memory of a killed server may be left on {host}{why}: "
            f"remove it there: rm -rf {self._folder} {self._folder}-*"
        )
