"""Remove the shared memory of servers that were killed, with one step on each of their nodes.

A step that fails is retried for a while: Slurm's controller may be briefly unreachable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from dlctl.contract import Plan
from learner.errors import UserFault
from learner.supervisor.steps import Step, on_host, step_log
from learner.system.segments import segment_folder

_AGAIN_S = 1.0


class Cleaning:
    """The clean-up steps on all nodes that may hold left-over shared memory.

    Args:
        hosts: the nodes.
        say: prints a line for people.
    """

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
