"""The rank of this process, from the variables that its launcher set."""

from __future__ import annotations

import os
from collections.abc import Mapping

from dlctl.contract import Plan
from dlctl.contract.launchers import LAUNCHERS, LaunchError, Ranks
from learner.errors import UserFault

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
    seen = env.get(RANK_VARIABLE)
    if seen is None or not seen.isdecimal() or int(seen) >= plan.resources.learners:
        raise UserFault(
            f"{RANK_VARIABLE} is {seen!r}; the plan has {plan.resources.learners} learners.",
            hint="Check that the site file's launcher and container pass the environment on.",
        )
    return ranks_of(plan, int(seen))
