"""Start one job step in its own session: all learners, or one learner, or one server.

With a parameter server each learner is a separate step: if learners share an MPI world or a step,
the death of one ends them all.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from dlctl.contract import Plan, attempt_dir, server_log
from dlctl.contract.launchers import LAUNCHERS
from learner.errors import SiteFault
from learner.job.context import RANK_VARIABLE, RESTARTS_VARIABLE, TAKES_OVER, ranks_of
from learner.job.environment import SHARED_VARIABLE
from learner.job.status import last_lines
from learner.system import processes


class Running(Protocol):
    """One step, or several that the supervisor watches as one."""

    @property
    def exit_code(self) -> int | None:
        """Return the step's exit code, None while it runs."""

    def terminate(self) -> None:
        """Ask the step to end."""

    def kill(self) -> None:
        """Kill the step."""


def step_log(job_dir: Path, attempt: int, name: str) -> Path:
    """Return the log of a step's launcher and helpers; each learner has its own log."""
    return job_dir / attempt_dir(attempt) / f"{name}.log"


def step_environment(plan: Plan) -> dict[str, str]:
    """Return the environment of a step, with dlctl's packages first on the Python path."""
    env = dict(os.environ)
    before = [p for p in env.get("PYTHONPATH", "").split(":") if p and p != plan.runtime_dir]
    env["PYTHONPATH"] = ":".join([plan.runtime_dir, *before])
    env["PYTHONSAFEPATH"] = "1"
    for launcher in LAUNCHERS.values():
        env.update(launcher.environment)
    return env


class Step:
    """A running step.

    Args:
        prefix: the launcher and its options; empty for a plain child process.
        program: one of dlctl's modules and its arguments.
        log: the file that receives the output of launcher and program.
        variables: environment variables added to those of `step_environment`.
    """

    def __init__(
        self, plan: Plan, prefix: list[str], program: list[str], log: Path,
        variables: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        argv = [*prefix, *plan.environment.container, plan.environment.python, "-m", *program]
        self._log = log
        try:
            log.parent.mkdir(exist_ok=True)
            with log.open("ab") as output:
                self._from = output.tell()
                self._process = subprocess.Popen(
                    argv,
                    cwd=plan.runtime_dir,
                    env={**step_environment(plan), **(variables or {})},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    # The supervisor alone reacts to signals sent to its process group.
                    start_new_session=True,
                    preexec_fn=processes.end_with_parent,
                )
        except OSError as error:
            raise SiteFault(
                f"The launcher {argv[0]!r} can't be started on the first node: {error.strerror}.",
                hint=f"Check `launcher` and `environment` in the site file of {plan.site}.",
            ) from error

    @property
    def exit_code(self) -> int | None:
        """Return the launcher's exit code, or None while it runs."""
        return self._process.poll()

    def words(self) -> list[str]:
        """Return the last lines that the step has printed since it started."""
        return last_lines(self._log, since=self._from)

    def terminate(self) -> None:
        """Ask the launcher to end the step (not SIGINT: srun only reports on the first one)."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the launcher."""
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)


class Steps:
    """Several steps treated as one, which ends when all of them have ended."""

    def __init__(self, steps: list[Step]) -> None:
        self._steps = steps

    @property
    def exit_code(self) -> int | None:
        """Return the first exit code that is not 0, or else 0; None while any step runs."""
        codes = [step.exit_code for step in self._steps]
        return None if None in codes else next(filter(None, codes), 0)

    def terminate(self) -> None:
        """Ask all launchers to end their steps."""
        for step in self._steps:
            step.terminate()

    def kill(self) -> None:
        """Kill all launchers."""
        for step in self._steps:
            step.kill()


def whole_step(plan: Plan, module: str, job_dir: Path, attempt: int, log: Path) -> Step:
    """Start a module once for each learner, all in one step."""
    return Step(plan, plan.launch.argv, [module, str(job_dir), str(attempt)], log)


def learner_step(
    plan: Plan, module: str, job_dir: Path, attempt: int, rank: int, host: str, log: Path,
    restarts: int = 0, *, overlaps: bool = False,
) -> Step:  # fmt: skip
    """Start a module for one learner on its node.

    Args:
        overlaps: whether the step shares CPUs with other steps, as servers do, and all of the
            job's GPUs on its node; see learner.job.environment.
    """
    program = [module, str(job_dir), str(attempt)]
    variables = {RANK_VARIABLE: str(rank), RESTARTS_VARIABLE: str(restarts)}
    argv = plan.launch.argv
    if overlaps and plan.parameter_server:
        argv = plan.parameter_server.rejoin_argv[plan.resources.node_of(rank)[0]]
        if plan.resources.gpus_per_learner:
            variables[SHARED_VARIABLE] = "1"
    return Step(plan, on_host(argv, host), program, log, variables)


def preflight_steps(
    plan: Plan, job_dir: Path, attempt: int, hosts: list[str], log: Path
) -> Steps:  # fmt: skip
    """Start the preflight of each learner on its node, all at once."""
    module, learners = "learner.agent.preflight", range(plan.resources.learners)
    nodes = [ranks_of(plan, rank).node_rank for rank in learners]
    return Steps([learner_step(plan, module, job_dir, attempt, rank, hosts[nodes[rank]], log)
                  for rank in learners])  # fmt: skip


def server_step(
    plan: Plan, job_dir: Path, attempt: int, node: int, host: str, takes_over: bool
) -> Step:
    """Start the parameter server of one node.

    Args:
        takes_over: whether learners still use the memory that the previous server created.
    """
    server = plan.parameter_server
    argv = server.argv if server else []
    log = job_dir / server_log(attempt, node)
    program = ["learner.parameter_server.server", str(job_dir), str(attempt), str(node)]
    return Step(plan, on_host(argv, host), [*program, *[TAKES_OVER] * takes_over], log)


def on_host(argv: list[str], host: str) -> list[str]:
    """Return a launcher's command for one host; without a launcher there is only this host."""
    return [*argv, f"--nodelist={host}"] if argv else []
