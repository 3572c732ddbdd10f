"""The plan of a rehearsal, and what its figures say about the whole training. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dlctl.contract import CheckpointPolicy, Lifecycle, Plan, Rehearsal, Rehearsed, StarterKind
from dlctl.errors import PlanError
from dlctl.plan.decide import link_count, margin_s

CHECKPOINTS = 5
"""The number of checkpoints that a rehearsal takes beside the last, so that a kill finds one."""


def rehearsal_plan(plan: Plan, steps: int, limit_s: int) -> Plan:
    """Return the plan of a rehearsal of a training: one short job that tells nobody.

    Raises:
        PlanError: this training can't be rehearsed.
    """
    if not plan.framework.has_loop:
        raise PlanError(
            "only a training with dlctl's own loop can be rehearsed: the steps of a "
            "`framework.command`, at which to halt and compare, are not known to dlctl",
            hint="use `framework.job`, or try `dlctl halt` and `dlctl resume` on a short run",
        )
    if plan.parameter_server is not None:
        raise PlanError(
            "a training with a parameter server can't be rehearsed: its learners don't step "
            "together, so that no two runs are alike",
            hint="rehearse it without: --set parameter_server=null",
        )
    time_s = min(plan.resources.time_s or limit_s, limit_s)
    return replace(
        plan,
        resources=replace(plan.resources, time_s=time_s, halt_margin_s=margin_s(time_s)),
        training=replace(plan.training, log_every_steps=1),
        checkpoint=CheckpointPolicy(every_steps=max(1, steps // CHECKPOINTS)),
        data_stores=[replace(store, training_results=None) for store in plan.data_stores],
        lifecycle=Lifecycle(retries=0, starters=[StarterKind.IN_ALLOCATION.value]),
        notify=None,
        rehearsal=Rehearsal(steps),
    )


@dataclass(frozen=True)
class Forecast:
    """The cost of the whole training, if all steps are as those of the rehearsal."""

    hours: float
    """All jobs together, without their time in the queue and without validation."""
    links: int
    """The number of jobs."""
    node_hours: float
    gpu_hours: float
    asked_hours: float | None
    """The manifest's `time`."""


def forecast(plan: Plan, found: Rehearsed) -> Forecast | None:
    """Return what the whole training would take; None if a figure is missing.

    Args:
        plan: the training's, not the rehearsal's.
    """
    if found.total_steps is None or found.step_s is None:
        return None
    start_s, each_s = found.start_s or 0.0, plan.resources.time_s
    total_s = found.total_steps * found.step_s + start_s
    links = 1 if each_s is None else link_count(round(total_s), each_s, round(start_s))
    hours = (total_s + (links - 1) * start_s) / 3600
    gpus = plan.resources.gpus_per_learner * plan.resources.learners
    limit_s = plan.lifecycle.total_time_s if plan.lifecycle else None
    return Forecast(
        hours, links, hours * plan.resources.nodes, hours * gpus,
        None if limit_s is None else limit_s / 3600,
    )  # fmt: skip
