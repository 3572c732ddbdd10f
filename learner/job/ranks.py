"""Which of N processes this one is, in the words of the launcher that started it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from dlctl.contract import EACH, Plan
from learner.errors import UserFault

RANK_VARIABLE = "DLCTL_RANK"
"""Says which learner a step is that was started for one of them alone."""


@dataclass(frozen=True)
class Place:
    """One process among those that a launcher started."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    node_rank: int


def find_place(plan: Plan, env: Mapping[str, str] = os.environ) -> Place:
    """Return this process's place, from the variables of the plan's launcher.

    The kind decides which are read: under mpirun in a Slurm job, Slurm's variables are there
    too and mean the batch script.

    Raises:
        UserFault: the launcher set none of the variables that are known.
    """
    if plan.launch.kind == "direct":
        return Place(0, 1, 0, 1, 0)
    if plan.launch.kind == EACH:
        return _own_place(plan, env)
    if plan.launch.kind == "srun":
        return _slurm_place(env)
    return _mpi_place(plan, env)


def place_of(plan: Plan, rank: int) -> Place:
    """Return the place of a learner that is a step of its own: blocks of the plan's sizes."""
    per_node = plan.resources.learners_per_node
    node, first = node_of(rank, per_node)
    return Place(rank, plan.resources.learners, rank - first, per_node[node], node)


def _own_place(plan: Plan, env: Mapping[str, str]) -> Place:
    rank = _number(env, RANK_VARIABLE)
    if rank is None or rank >= plan.resources.learners:
        seen = env.get(RANK_VARIABLE)
        raise UserFault(
            f"{RANK_VARIABLE} is {seen!r}; the plan has {plan.resources.learners} learners.",
            hint="Check that `launcher` and containers of the site file pass the environment on.",
        )
    return place_of(plan, rank)


def _slurm_place(env: Mapping[str, str]) -> Place:
    rank = _number(env, "SLURM_PROCID")
    size = _number(env, "SLURM_NTASKS", "SLURM_NPROCS")
    if rank is None or size is None:
        raise UserFault(
            "srun set no SLURM_PROCID and SLURM_NTASKS for the learners.",
            hint="Check `launcher` in the site file: its argv has to start with srun.",
        )
    node = _number(env, "SLURM_NODEID") or 0
    tasks = tasks_per_node(env.get("SLURM_STEP_TASKS_PER_NODE", ""))
    local_size = tasks[node] if node < len(tasks) else size
    return Place(rank, size, _number(env, "SLURM_LOCALID") or 0, local_size, node)


def _mpi_place(plan: Plan, env: Mapping[str, str]) -> Place:
    rank = _number(env, "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
    size = _number(env, "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
    if rank is None or size is None:
        raise UserFault(
            "mpirun set neither OMPI_COMM_WORLD_RANK nor PMI_RANK for the learners.",
            hint="Check `launcher` in the site file: it knows OpenMPI's and MPICH's mpirun.",
        )
    node, first = node_of(rank, plan.resources.learners_per_node)
    local = _number(env, "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
    local_size = _number(env, "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
    return Place(
        rank,
        size,
        rank - first if local is None else local,
        plan.resources.learners_per_node[node] if local_size is None else local_size,
        node,
    )


def node_of(rank: int, learners_per_node: list[int]) -> tuple[int, int]:
    """Return the node that holds a rank, and the first rank there, for block placement."""
    first = 0
    for node, count in enumerate(learners_per_node):
        if rank < first + count:
            return node, first
        first += count
    return max(0, len(learners_per_node) - 1), max(0, first - (learners_per_node or [0])[-1])


def tasks_per_node(text: str) -> list[int]:
    """Return the tasks on each node from Slurm's words, e.g. `2(x3),1` → [2, 2, 2, 1]."""
    found: list[int] = []
    for count, repeat in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        found += [int(count)] * int(repeat or 1)
    return found


def _number(env: Mapping[str, str], *names: str) -> int | None:
    for name in names:
        if env.get(name, "").isdecimal():
            return int(env[name])
    return None
