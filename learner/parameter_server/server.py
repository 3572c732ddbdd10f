"""The program of a node's parameter server, a job step of its own.

    python -m learner.parameter_server.server <job dir> <attempt> <node> [takes-over]

With `takes-over` the shared memory of the previous server must still exist.

Runs psrv.server.server for a job's plan, keeps its `Status` fresh, and ends with the supervisor.
"""

from __future__ import annotations

import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from dlctl.contract import Plan, State
from learner.agent.preflight import bound_address
from learner.errors import EXIT_NO_RESTART, UserFault
from learner.job.context import TAKES_OVER, read_plan
from learner.job.directives import ENDED, GIVEN_UP, Outside
from learner.job.metrics import tell
from learner.job.status import Heartbeat
from learner.parameter_server.solver import describe_solver, solver_of_job
from learner.system import processes
from learner.system.memory import memory_left
from learner.system.segments import remove_earlier, remove_segment_folder, server_folder
from learner.system.signals import HaltFlag
from psrv.errors import ServerError
from psrv.server.server import NodeServer, Settings

_ASK_OUTSIDE_EVERY_S = 0.5


def main(arguments: list[str]) -> int:
    """Serve until told to end; return the exit code."""
    job_dir, attempt, node = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    ended = HaltFlag(signal.SIGTERM, signal.SIGHUP, signal.SIGINT).install()
    HaltFlag(signal.SIGUSR2).install()  # a halt concerns the learners only
    processes.end_with_parent()
    try:
        plan = read_plan(job_dir, attempt)
        remove_earlier(plan.training_id, attempt)
        return _run(plan, job_dir, attempt, node, TAKES_OVER in arguments[3:], ended)
    except (ServerError, UserFault) as error:
        tell(f"dlctl: on {socket.gethostname()}: {error}", sys.stderr)
        return EXIT_NO_RESTART


def _run(
    plan: Plan, job_dir: Path, attempt: int, node: int, takes_over: bool, ended: HaltFlag
) -> int:
    heart = Heartbeat(job_dir, "server", node, attempt)
    heart.set(reason="starting")
    try:
        settings = replace(_settings(plan, job_dir, attempt, node), takes_over=takes_over)
        why = _serve(plan, job_dir, settings, ended, heart)
    except (ServerError, UserFault) as error:
        _say(heart, node, error)
        return EXIT_NO_RESTART
    remove_segment_folder(plan.training_id, attempt)
    if why in ("", ENDED):
        heart.set(state=State.COMPLETED, reason="ended with the training", exit_code=0)
    elif why != GIVEN_UP:  # otherwise the supervisor has ruled on it
        heart.set(state=State.CANCELLED, reason=why, exit_code=0)
    return 0


def _serve(plan: Plan, job_dir: Path, settings: Settings, ended: HaltFlag, heart: Heartbeat) -> str:
    """Serve until the end; return the reason, or "" after a signal."""

    def log(line: str) -> None:
        tell(f"{_label(node)} {line}")

    def beat(doing: str) -> None:
        heart.beat(state=State.TRAINING if doing == "serves" else State.DEPLOYING, reason=doing)

    attempt, node = settings.attempt, settings.node
    # After the user's own build. One thread: blocks are too small for more, and connections have
    # their own.
    torch.set_num_threads(1)
    folder = server_folder(plan.training_id, attempt, job_dir)
    server = NodeServer(job_dir, folder, settings, log)
    stopped = _Stopped(Outside(job_dir, attempt, node=node), ended, server.has_learners)
    server.run(stopped, beat)
    if stopped.reason:
        log(f"ends: {stopped.reason}")
    return GIVEN_UP if server.lost else stopped.reason


def _settings(plan: Plan, job_dir: Path, attempt: int, node: int) -> Settings:
    settings = plan.parameter_server
    if settings is None:
        raise ServerError(f"the plan of attempt {attempt} has no parameter server")
    solver, resources = solver_of_job(plan, job_dir), plan.resources
    return Settings(
        attempt=attempt,
        node=node,
        learners_per_node=resources.learners_per_node,
        solver=solver,
        solver_line=describe_solver(settings, solver),
        host=bound_address(plan),
        timeout_s=settings.timeout_s,
        snapshot_every_s=settings.snapshot_every_s,
        bounded=bool(settings.staleness),
        memory_left=lambda: min(memory_left().values(), default=None),
    )


class _Stopped:
    """Tells the server to end: the supervisor says so, or nobody needs the server any more.

    Nobody needs it if a signal came or the supervisor is gone, and no learner is here. A signal
    alone ends nothing while learners of this node work on the memory that goes with this server,
    nor while the supervisor lives, which may be about to restart them: the next server would begin
    from an old snapshot. (Slurm sends SIGTERM to steps long before a preemption.)

    Args:
        needed: Returns whether learners of this node take part.
    """

    def __init__(self, outside: Outside, ended: HaltFlag, needed: Callable[[], bool]) -> None:
        self._outside, self._ended, self._needed = outside, ended, needed
        self._due = 0.0
        self._expelled = self._abandoned = ""

    def __call__(self) -> bool:
        if not self._expelled and time.monotonic() > self._due:
            self._due = time.monotonic() + _ASK_OUTSIDE_EVERY_S
            self._expelled = self._outside.expelled()
            self._abandoned = self._outside.abandoned()
        if self._expelled:
            return True
        by_signal = self._ended and not self._outside.supervisor_lives
        return bool(by_signal or self._abandoned) and not self._needed()

    @property
    def reason(self) -> str:
        """The reason, in a few words, or "" after a signal."""
        return self._expelled or self._abandoned


def _say(heart: Heartbeat, node: int, error: ServerError | UserFault) -> None:
    """Report an error that ends this server, in its log and its status."""
    lines = str(error).splitlines()
    for line in lines:
        tell(f"{_label(node)} {line}", sys.stderr)
    code = EXIT_NO_RESTART
    heart.set(state=State.FAILED, exit_code=code, reason=error.message, last_lines=lines)


def _label(node: int) -> str:
    return f"[server {node} on {socket.gethostname()}]"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
