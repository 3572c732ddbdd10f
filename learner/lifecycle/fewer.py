"""Go on with the learners of the nodes that are left: the plan of an attempt with fewer of them.

The checkpoint does not depend on the number of learners, and the batch of all of them together
stays the same.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import replace

from dlctl.contract import Plan
from dlctl.contract.launchers import LAUNCHERS
from learner.errors import UserFault
from learner.job.batch import batch_system

KNOWN_S = 45.0
"""How long Slurm may take to notice that a node is gone, after it has ended the step there."""
_ASK_EVERY_S = 2.0


def on_what_is_left(plan: Plan, attempt: int, job_id: str, patience_s: float) -> Plan | None:
    """Return the plan for the nodes that Slurm has left to the job; None if they are too few.

    Args:
        patience_s: how long to wait for Slurm to take a node from the job.
    """
    least = plan.lifecycle.min_learners if plan.lifecycle else None
    if least is None or plan.launch.step_per_learner or not plan.launch.argv or not job_id:
        return None
    system, until = batch_system(plan), time.monotonic() + patience_s
    while True:
        try:
            hosts = system.hosts()
        except UserFault:
            return None
        left = hosts if (found := system.left_hosts()) is None else found
        fewer = reduced(plan, attempt, hosts, left)
        if fewer is not None or len(left) < len(hosts) or time.monotonic() > until:
            return fewer
        time.sleep(_ASK_EVERY_S)


def reduced(plan: Plan, attempt: int, hosts: Sequence[str], left: Sequence[str]) -> Plan | None:
    """Return a plan for fewer nodes; None if no node is lost, or too few learners are left. Pure.

    Args:
        attempt: the attempt that `plan` belongs to.
        hosts: of the nodes of `plan`, in order.
        left: those that the job still has.
    """
    lifecycle, launcher = plan.lifecycle, LAUNCHERS[plan.launch.kind]
    kept = [n for n, host in enumerate(hosts) if host in left]
    per_node = [plan.resources.learners_per_node[n] for n in kept]
    learners = sum(per_node)
    if lifecycle is None or lifecycle.min_learners is None or len(kept) in (0, len(hosts)):
        return None
    if learners < lifecycle.min_learners:
        return None
    learners_on = {hosts[n]: count for n, count in zip(kept, per_node, strict=True)}
    argv = launcher.reshaped(plan.launch.argv, learners_on)
    whole = attempt if lifecycle.whole_attempt is None else lifecycle.whole_attempt
    return replace(
        plan,
        resources=replace(
            plan.resources, learners=learners, nodes=len(kept), learners_per_node=per_node,
            first_ranks=list(itertools.accumulate(per_node[:-1], initial=0)),
        ),
        launch=replace(plan.launch, argv=argv),
        lifecycle=replace(lifecycle, whole_attempt=whole),
    )  # fmt: skip
