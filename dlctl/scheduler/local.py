"""The queue of a machine without a scheduler: the commands of `learner/localqueue.py`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from dlctl import contract
from dlctl.contract.ground.safe_text import lines_of
from dlctl.errors import SubmitRejected, SubmitUnknown
from dlctl.scheduler.base import Job, Scheduler
from dlctl.scheduler.rows import parse_rows, unavailable

QUEUE_PROGRAM = "learner/localqueue.py"
"""Below a runtime directory."""
REFUSED = 3
"""The queue's exit code if it refuses a job; standard error says why."""
_GROUP, _OUTPUT = "@GROUP@", "@OUTPUT@"
"""In the place of shell variables while a call is quoted, which needs none for them."""


PROCESSES = Path("/proc/self/stat")
"""By its like the queue knows whether a job lives."""


@dataclass(frozen=True)
class LocalQueue(Scheduler):
    """Jobs under bash on one machine, detached from the terminal, first in first out."""

    python: str = "python3"
    runtime_dir: str | None = None
    """For everything but `submit`, which uses the plan's; any runtime below the root works."""
    cpus: int | None = None
    """The CPUs that the jobs share; all of the machine's by default."""
    kind = "local"
    allocates = False

    def lack_here(self) -> str:
        """Return that jobs need Linux, unless this machine runs it."""
        return "" if PROCESSES.exists() else f"jobs need Linux: there is no {PROCESSES} here"

    def submit_script(self, plan: contract.Plan, attempt: int | str) -> str:
        """Return the queue's submit call; submitting a token again returns the first job's id."""
        return self._submit(plan, {
            "token": contract.token(plan.training_id, attempt),
            "script": contract.script_file(attempt),
            "attempt": str(attempt),
            "output": contract.job_output(attempt),
        })  # fmt: skip

    def workers_script(self, plan: contract.Plan, script: str, output: str) -> str:
        """Return a loop that submits each worker."""
        call = self._submit(plan, {
            "token": contract.token(plan.training_id, _GROUP),
            "script": script,
            "attempt": _GROUP,
            "output": f"{output}/{_OUTPUT}",
            "beside-cpus": "1",  # the hub's
        })  # fmt: skip
        call = call.replace(_OUTPUT, '"$group/$number.out"').replace(_GROUP, '"$group.$number"')
        return (
            f'number=0\nwhile [ "$number" -lt "$count" ]; do\n  {call.rstrip()} || exit\n'
            "  number=$((number + 1))\ndone\n"
        )

    def workers_alive_script(self, plan: contract.Plan) -> str:
        """Return the list call, and what takes the groups of living jobs from it."""
        calls = self._program(plan.root, ["list", f"--root={plan.root}"])
        return (
            f"found=$({calls}) || exit\n"
            f"token={shlex.quote(contract.token(plan.training_id, ''))}\n"
            + r"""printf '%s\n' "$found" | awk 'BEGIN { RS = "\036"; FS = "\037" }
  $3 ~ /^(PENDING|RUNNING|COMPLETING)$/ { print $2, $1, $3 }' | while IFS= read -r row; do
  case $row in "$token"[a-z][0-9]*.[0-9]*)
    row=${row#"$token"}
    printf '%s %s\n' "${row%%.*}" "${row#* }" ;;
  esac
done
"""
        )

    def _submit(self, plan: contract.Plan, job: dict[str, str]) -> str:
        resources = plan.resources
        options = {
            "root": plan.root, **job, "cpus": str(resources.learners * resources.cpus_per_learner),
        }  # fmt: skip
        if self.cpus is not None:
            options["total-cpus"] = str(self.cpus)
        if resources.time_s is not None:
            options["time-s"] = str(resources.time_s)
            options["halt-margin-s"] = str(resources.halt_margin_s)
        program = [self.python, "-I", f"{plan.runtime_dir}/{QUEUE_PROGRAM}", "submit"]
        arguments = [f"--{name}={value}" for name, value in options.items()]
        return f'{shlex.join([*program, *arguments])} --job-dir="$PWD" </dev/null\n'

    def parse_submit(self, exit_code: int, stdout: str, stderr: str) -> str:
        """Return the job id: the last line that is a number."""
        numbers = [line.strip() for line in lines_of(stdout) if line.strip().isdecimal()]
        if exit_code == 0 and numbers:
            return numbers[-1]
        problem = " ".join(stderr.split()) or "it printed nothing"
        if exit_code in (126, 127):
            raise SubmitRejected(
                f"The local queue needs {self.python} on the machine that runs the jobs: {problem}",
                hint="Set the site's environment.python to a Python 3.10 or newer.",
            )
        if exit_code == REFUSED:
            raise SubmitRejected(f"The local queue refused the job: {problem}")
        raise SubmitUnknown(
            f"The local queue's answer was lost (exit code {exit_code}): {problem}",
            hint="dlctl looks for the job by name; it is never started twice.",
        )

    def queue_script(self, root: str) -> str:
        """Return the list call; the list is empty if nothing was ever submitted."""
        return self._program(root, ["list", f"--root={root}"])

    def parse_queue(self, exit_code: int, stdout: str, stderr: str) -> list[Job]:
        """Return the jobs, including those that have ended."""
        if exit_code != 0:
            raise unavailable("The local queue", exit_code, stderr)
        return parse_rows(stdout)

    def cancel_script(self, job_id: str, root: str) -> str:
        """Return the cancel call."""
        return self._program(root, ["cancel", f"--root={root}", "--", job_id])

    def parse_cancel(self, exit_code: int, stdout: str, stderr: str) -> None:  # noqa: ARG002
        """Accept a job that is gone: the queue returns 0 for it."""
        if exit_code != 0:
            raise unavailable("The local queue", exit_code, stderr)

    def _program(self, root: str, arguments: list[str]) -> str:
        """Return a call of any queue program below the root, ours first; none means no jobs."""
        ours = [shlex.quote(f"{self.runtime_dir}/{QUEUE_PROGRAM}")] if self.runtime_dir else []
        places = " ".join([*ours, f"{shlex.quote(root)}/runtime/*/{QUEUE_PROGRAM}"])
        call = f'{shlex.quote(self.python)} -I "$program" {shlex.join(arguments)}'
        return (
            f"for program in {places}; do\n"
            f'  if [ -f "$program" ]; then {call} </dev/null; exit; fi\n'
            "done\n"
        )
