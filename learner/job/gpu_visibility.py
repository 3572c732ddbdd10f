"""Which GPUs a learner uses if its step sees those of other learners, too.

After a job has lost a node, Slurm (22.05) still counts the GPUs and cores of finished steps as
taken. A restarted learner then gets a step that shares all of the job's GPUs on its node, and must
use only those that it had before.
"""

from __future__ import annotations

from collections.abc import Mapping

from dlctl.contract.launchers import LAUNCHERS

SHARED_VARIABLE = "DLCTL_SHARES_GPUS"
"""Set if a step has the GPUs of other learners, too."""
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


def step_gpus(env: Mapping[str, str]) -> str:
    """Return the scheduler's numbers of a step's GPUs, whatever numbers its programs see."""
    return next((env[each.gpus_variable] for each in LAUNCHERS.values()
                 if env.get(each.gpus_variable)), "")  # fmt: skip


def own_gpus(env: Mapping[str, str], before: str, gpus: int, local_rank: int) -> str:
    """Return the scheduler's numbers of the GPUs that a learner should use, "" if it gives none.

    Args:
        env: the environment of its step.
        before: what this function returned for the learner's previous start, or "".
        gpus: how many GPUs a learner has.
        local_rank: the learner's place on the node, which decides if `before` is unknown.
    """
    there = step_gpus(env)
    if not env.get(SHARED_VARIABLE):
        return there
    seen = there.split(",")
    had = before.split(",")
    if set(had) <= set(seen):
        return before
    return ",".join(seen[local_rank * gpus :][:gpus]) or there


def visible_devices(env: Mapping[str, str], own: str) -> dict[str, str]:
    """Return variables that restrict a learner to its own GPUs; none if it sees no others.

    Args:
        env: the environment of its step.
        own: the result of `own_gpus`.
    """
    seen = step_gpus(env).split(",")
    if not env.get(SHARED_VARIABLE) or not set(own.split(",")) < set(seen):
        return {}
    found = {}
    for name in _VISIBLE:
        devices = env.get(name, "").split(",")
        if len(devices) == len(seen):
            found[name] = ",".join(devices[seen.index(gpu)] for gpu in own.split(","))
    return found
