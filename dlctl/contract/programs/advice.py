"""Advice on resuming with more of what ran out: commands with numbers that the site can grant."""

from __future__ import annotations

import math
import re

from dlctl.contract.ground.amounts import format_duration
from dlctl.contract.plan import Plan

_MIB = 2**20
_FIRST_BYTES = 4 * 2**30
"""What to ask for where the plan has left it to the site."""

_WITHOUT_ID = re.compile(
    r"(?<=\bdlctl )(?:logs(?: --trial \d+)?|resume(?: --code)?|fetch(?: results)?|show|metrics"
    r"|checkpoints (?:list|verify))(?=`|[.,;]|$)"
)
"""Commands that take the latest training of a folder where they get no id."""


def with_id(text: str, training_id: str) -> str:
    """Return advice whose commands name their training: they may be typed anywhere, and later."""
    return _WITHOUT_ID.sub(lambda found: f"{found[0]} {training_id}", text)


def filled(hint: str, plan: Plan, rank: int = 0, over: float = 1.0) -> str:
    """Return a hint of `verdict_rules` for a learner of a training.

    Args:
        over: How many times the memory that was asked for was in use at the end.
    """
    return hint.format(
        id=plan.training_id, site=plan.site, rank=rank, memory=more_memory(plan, over),
        time=longer_job(plan), limits=higher_limits(plan),
    )  # fmt: skip


def limits_memory(plan: Plan) -> bool:
    """Return whether a learner that uses more than it has asked for is killed."""
    return plan.batch.scheduler != "local"


def memory_of(plan: Plan, used_bytes: float | None = None) -> str:
    """Return the memory that each learner may use, and how much one last used, in words."""
    size = plan.resources.memory_bytes_per_learner
    limit = "the plan sets none" if size is None else f"{_in_words(size)} per learner"
    return limit if used_bytes is None else f"{limit}; it last used {_in_words(used_bytes)}"


def more_memory(plan: Plan, over: float = 1.0) -> str:
    """Return what to do where memory ran out: ask for twice as much or more, if a node has it.

    Args:
        over: How many times the memory that was asked for was in use at the end.
    """
    factor = 2 ** max(1, math.ceil(math.log2(1.25 * over)))
    now, most = (
        plan.resources.memory_bytes_per_learner,
        plan.resources.most_memory_bytes_per_learner,
    )
    wanted = _FIRST_BYTES if now is None else factor * now
    resume = f"dlctl resume {plan.training_id}"
    if not limits_memory(plan):
        return (
            "If memory ran out (free -h), end other programs on this machine, and go on: "
            f"{resume}; or make the batch smaller, and submit again"
        )
    if most is None or wanted <= most:
        return f"Resume with more memory (now: {memory_of(plan)}): {resume} --memory {_mib(wanted)}"
    if now is None or now < most - most // 20:
        return (
            f"Make the batch smaller, or resume with all that a learner can have there (now: "
            f"{memory_of(plan)}): {resume} --memory {_mib(most - most % _MIB)}"
        )
    return (
        "Make the batch smaller, or the model: no node there has room for more than "
        f"{_in_words(most)} per learner"
    )


def more_time(plan: Plan) -> str:
    """Return what to do where a training's time is used up: twice as much, by more jobs if need be.

    A partition's limit is no limit of this: dlctl makes a chain of jobs.
    """
    total_s = plan.lifecycle.total_time_s if plan.lifecycle else plan.resources.time_s
    time = format_duration(2 * total_s) if total_s else "TIME"
    return f"with more time: dlctl resume {plan.training_id} --time {time}"


def longer_job(plan: Plan) -> str:
    """Return what to do where a job ended before it could save: one of twice the time.

    It gets as much as its partition allows.
    """
    now_s, most_s = plan.resources.time_s, plan.resources.most_time_s
    if now_s is None or most_s is None or 2 * now_s <= most_s:
        return more_time(plan)
    resume, most = f"dlctl resume {plan.training_id}", format_duration(most_s)
    if now_s < most_s:
        return f"with all the time that its partition allows: {resume} --time {most}"
    return (
        f"and save more often, as no job of its partition may take longer than {most}: {resume}; "
        f"or take another partition (`dlctl sites show {plan.site}`): {resume} --partition NAME"
    )


def higher_limits(plan: Plan) -> str:
    """Return what to do about a limit that the job's processes inherit from their shell."""
    where = "`environment.setup` of the site's file (ulimit), or "
    # Slurm hands on no limit of the login node.
    where += "have the nodes' raised" if limits_memory(plan) else "in the shell that submits"
    return f"Raise the limit in {where}; then: dlctl resume {plan.training_id}"


def more_packages(plan: Plan, names: str) -> str:
    """Return how the site's Python gets what it lacks."""
    if plan.environment.container:
        return (
            f"Set environment.python to a Python in the container that has {names}, or add "
            f"{'these' if ',' in names else 'it'} to the image."
        )
    return f"Run: dlctl sites setup {plan.site}  (it makes an environment with {names} there)"


def _in_words(size_bytes: float) -> str:
    gib = size_bytes / 2**30
    return f"{gib:.3g} GiB" if gib >= 1 else f"{size_bytes / _MIB:.3g} MiB"


def _mib(size_bytes: int) -> str:
    mib = -(-size_bytes // _MIB)
    return f"{mib // 1024}GiB" if mib % 1024 == 0 else f"{mib}MiB"
