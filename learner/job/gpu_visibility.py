"""A learner's own GPUs, where its step sees those of others, too.

Once a job has lost a node, Slurm (22.05) counts the GPUs of steps that have ended as taken, as it
does their cores. A learner that is started again then gets a step that shares all GPUs of the job
on its node, and keeps to those that it had before.
"""

from __future__ import annotations

from collections.abc import Mapping

IDS = "SLURM_STEP_GPUS"
"""Slurm's numbers of a step's GPUs, whatever they are called in there."""
SHARED_VARIABLE = "DLCTL_SHARES_GPUS"
"""Set where a step has the GPUs of others, too."""
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


def own_gpus(env: Mapping[str, str], before: str, gpus: int, local_rank: int) -> str:
    """Return Slurm's numbers of the GPUs that a learner is to use, "" if Slurm has not said any.

    Args:
        env: Of its step.
        before: What this returned when the learner ran before, or "".
        gpus: How many a learner has.
        local_rank: Its place on the node, for one of which nothing is known.
    """
    there = env.get(IDS, "")
    if not env.get(SHARED_VARIABLE):
        return there
    seen = there.split(",")
    had = before.split(",")
    if set(had) <= set(seen):
        return before
    return ",".join(seen[local_rank * gpus :][:gpus]) or there


def visible_devices(env: Mapping[str, str], own: str) -> dict[str, str]:
    """Return variables that show a learner its own GPUs only; none, where it sees no others.

    Args:
        env: Of its step.
        own: From `own_gpus`.
    """
    seen = env.get(IDS, "").split(",")
    if not env.get(SHARED_VARIABLE) or not set(own.split(",")) < set(seen):
        return {}
    found = {}
    for name in _VISIBLE:
        devices = env.get(name, "").split(",")
        if len(devices) == len(seen):
            found[name] = ",".join(devices[seen.index(gpu)] for gpu in own.split(","))
    return found
