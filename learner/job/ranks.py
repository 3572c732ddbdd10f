"""Which of N processes this one is, in the words of the launcher that started it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from dlctl.contract import Plan
from dlctl.contract.launchers import LAUNCHERS, LaunchError, Ranks
from learner.errors import UserFault

RANK_VARIABLE = "DLCTL_RANK"
"""The rank of a learner that is a job step of its own."""


def find_ranks(plan: Plan, env: Mapping[str, str] = os.environ) -> Ranks:
    """Return this process's rank, from the variables of the plan's launcher.

    The plan's launcher decides which are read: under mpirun in a Slurm job, Slurm's variables are
    set too and mean the batch script.

    Raises:
        UserFault: the launcher set none of the variables that are known.
    """
    if plan.launch.step_per_learner:
        return _own_step(plan, env)
    try:
        return LAUNCHERS[plan.launch.kind].ranks(env, plan.resources)
    except LaunchError as error:
        raise UserFault(error.message, hint=error.hint) from error


def ranks_of(plan: Plan, rank: int) -> Ranks:
    """Return the place of a learner that is a job step of its own."""
    node, first = plan.resources.node_of(rank)
    local_size = plan.resources.learners_per_node[node]
    return Ranks(rank, plan.resources.learners, rank - first, local_size, node)


def _own_step(plan: Plan, env: Mapping[str, str]) -> Ranks:
    seen = env.get(RANK_VARIABLE)
    if seen is None or not seen.isdecimal() or int(seen) >= plan.resources.learners:
        raise UserFault(
            f"{RANK_VARIABLE} is {seen!r}; the plan has {plan.resources.learners} learners.",
            hint="Check that `launcher` and containers of the site file pass the environment on.",
        )
    return ranks_of(plan, int(seen))
