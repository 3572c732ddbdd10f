"""Start one job step: N processes under the plan's launcher, in a session of their own."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from dlctl.contract import Plan, attempt_dir
from learner import processes
from learner.faults import UserFault


def step_log(job_dir: Path, attempt: int, name: str) -> Path:
    """Return where launcher and helpers of a step print; the learners have logs of their own."""
    return job_dir / attempt_dir(attempt) / f"{name}.log"


def step_argv(plan: Plan, module: str, job_dir: Path, attempt: int) -> list[str]:
    """Return the whole command of a step."""
    python = [plan.environment.python, "-m", module, str(job_dir), str(attempt)]
    return [*plan.launch.argv, *plan.environment.container, *python]


def step_environment(plan: Plan) -> dict[str, str]:
    """Return the environment of a step: our packages first on the path, and only they."""
    env = dict(os.environ)
    before = [p for p in env.get("PYTHONPATH", "").split(":") if p and p != plan.runtime_dir]
    env["PYTHONPATH"] = ":".join([plan.runtime_dir, *before])
    env["PYTHONSAFEPATH"] = "1"
    # A job that was submitted with --export=NONE would hand that on to srun.
    env["SLURM_EXPORT_ENV"] = "ALL"
    return env


class Step:
    """A running step."""

    def __init__(self, plan: Plan, module: str, job_dir: Path, attempt: int, log: Path) -> None:
        argv = step_argv(plan, module, job_dir, attempt)
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    argv,
                    cwd=plan.runtime_dir,
                    env=step_environment(plan),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    # Signals to our group are for us to judge.
                    start_new_session=True,
                    preexec_fn=processes.end_with_parent,
                )
        except OSError as error:
            raise UserFault(
                f"The launcher {argv[0]!r} can't be started on the first node: {error.strerror}.",
                hint=f"Check `launcher` and `environment` in the site file of {plan.site}.",
            ) from error

    @property
    def exit_code(self) -> int | None:
        """Return the launcher's exit code, or None while it runs."""
        return self._process.poll()

    def terminate(self) -> None:
        """Ask the launcher to end the step (not SIGINT: srun only reports on the first one)."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End the launcher outright."""
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)
