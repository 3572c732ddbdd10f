"""Find the attempt, plan and rank of this process. Never imports torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dlctl import contract
from dlctl.contract import Plan
from dlctl.contract.launchers import LAUNCHERS, LaunchError, Ranks
from learner.errors import SiteFault, UserFault
from learner.job.batch import own_job_id

JOB_VARIABLE = "DLCTL_JOB_DIR"
ATTEMPT_VARIABLE = "DLCTL_ATTEMPT"
ENDS_AT_VARIABLE = "DLCTL_JOB_ENDS_AT"
"""When a job ends, in Unix seconds, for the attempts after the first that run in it."""


@dataclass(frozen=True)
class LearnerContext:
    """The job, attempt and rank that this process was started for."""

    directory: Path
    """The job directory."""
    attempt: int
    plan: contract.Plan
    rank: int


def read_plan(directory: Path, attempt: int) -> contract.Plan:
    """Return the plan of an attempt.

    Raises:
        SiteFault: the plan is missing or can't be read.
    """
    try:
        plan = contract.read_record(contract.Plan, directory / contract.plan_file(attempt))
    except (contract.ContractError, OSError) as error:
        raise SiteFault(f"The plan in {str(directory)!r} can't be read: {error}.") from error
    if plan is None:
        raise SiteFault(
            f"There is no {contract.plan_file(attempt)} in the job directory {str(directory)!r}.",
            hint="Check that all nodes share the site's root folder. If a purge of old files has "
            f"removed it, send the folder again: dlctl resume --code {directory.name}",
        )
    return plan


def plan_left(directory: Path, attempt: int) -> contract.Plan:
    """Return the plan of an attempt that has ended; if a purge has removed it, one before it.

    Raises:
        SiteFault: there is none.
    """
    numbers = range(attempt, 0, -1)
    left = (n for n in numbers if (directory / contract.plan_file(n)).exists())
    return read_plan(directory, next(left, attempt))


def _job() -> tuple[Path, int] | None:
    """Return the job directory and the attempt of this process, if it runs in a dlctl job."""
    directory, attempt = os.environ.get(JOB_VARIABLE), os.environ.get(ATTEMPT_VARIABLE, "")
    return (Path(directory), int(attempt)) if directory and attempt.isdecimal() else None


def successor() -> Path | None:
    """Return the file that exists once a later attempt has begun; None outside a dlctl job."""
    return job[0] / contract.submit_begin(job[1] + 1) if (job := _job()) else None


def find_context() -> LearnerContext | None:
    """Return the context that the launcher gave this process; None outside a dlctl job."""
    job = _job()
    return LearnerContext(*job, read_plan(*job), int(os.environ.get("RANK", "0"))) if job else None


RESTARTS_VARIABLE = "DLCTL_RESTARTS"
"""Environment variable: how often the watchdog's learner was started before."""


CHECKED_VARIABLE = "DLCTL_CHECKED_BEFORE"
"""Environment variable: the attempt whose preflight counts for the next one, too."""


def launcher_name(plan: Plan) -> str:
    """Return the plan's launcher by the name that people know."""
    if not plan.launch.step_per_learner:
        return plan.launch.kind
    return Path(plan.launch.argv[0]).name if plan.launch.argv else "its process"


def how_started(plan: Plan) -> str:
    """Return how the learners are started, in a word or two."""
    return "a step each" if plan.launch.step_per_learner else plan.launch.kind


def starts_mpi(plan: Plan) -> bool:
    """Return whether the learners share an MPI world."""
    return not plan.launch.step_per_learner and LAUNCHERS[plan.launch.kind].starts_mpi


def job_id(job_dir: Path, attempt: int) -> str:
    """Return the scheduler's id of this job, from the claim or from the environment."""
    try:
        return (job_dir / contract.claim(attempt)).read_text().strip()
    except OSError:
        return own_job_id()


TAKES_OVER = "takes-over"
"""Argument of a server: learners still use the shared memory that the previous server created."""


RANK_VARIABLE = "DLCTL_RANK"
"""Environment variable: the rank of a learner that runs in its own job step."""


def find_ranks(plan: Plan, env: Mapping[str, str] = os.environ) -> Ranks:
    """Return this process's rank and place, from the variables of the plan's launcher.

    Only the variables of the plan's launcher are read: under mpirun in a Slurm job, Slurm's
    variables are set, too, and describe the batch script.

    Raises:
        UserFault: the launcher set none of the variables that dlctl knows.
    """
    if plan.launch.step_per_learner:
        return _own_step(plan, env)
    try:
        return LAUNCHERS[plan.launch.kind].ranks(env, plan.resources)
    except LaunchError as error:
        raise UserFault(error.message, hint=error.hint) from error


def ranks_of(plan: Plan, rank: int) -> Ranks:
    """Return the ranks of a learner that runs in its own job step."""
    node, first = plan.resources.node_of(rank)
    local_size = plan.resources.learners_per_node[node]
    return Ranks(rank, plan.resources.learners, rank - first, local_size, node)


def _own_step(plan: Plan, env: Mapping[str, str]) -> Ranks:
    rank = env.get(RANK_VARIABLE)
    if rank is None or not rank.isdecimal() or int(rank) >= plan.resources.learners:
        raise UserFault(
            f"{RANK_VARIABLE} is {rank!r}; the plan has {plan.resources.learners} learners.",
            hint="Check that the site file's launcher and container pass the environment on.",
        )
    return ranks_of(plan, int(rank))
