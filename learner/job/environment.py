"""The environment of a learner: the service's variables, torchrun's, the user's, secrets, and GPUs.

Secrets are resolved here; their values go only into the environment. After a job has lost a node,
Slurm (22.05) still counts the GPUs and cores of finished steps as taken. A restarted learner then
gets a step that shares all of the job's GPUs on its node, and must use only those that it had
before.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from dlctl import contract
from dlctl.contract import Plan, Preflight
from dlctl.contract.launchers import GPU_VARIABLES, LAUNCHERS, Ranks
from learner.errors import UserFault
from learner.system.files import resolve_secret

PROGRESS_FILE = "DLCTL_PROGRESS_FILE"
"""Variable that names the file in which the built-in loop reports its progress to the watchdog."""
ARGUMENTS_VARIABLE = "DLCTL_ARGUMENTS"
"""Variable that names the JSON file with `framework.arguments`."""
ADDRESSES_VARIABLE = "LEARNER_ADDRESSES"
"""Variable with `host:port` of each learner, in order of rank, separated by commas."""
RDMA_DEVICES = Path("/sys/class/infiniband")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def learner_environment(
    plan: Plan,
    job_dir: Path,
    attempt: int,
    ranks: Ranks,
    meeting_point: Preflight,
    base: Mapping[str, str],
    secrets: Mapping[str, str],
) -> dict[str, str]:
    """Return the whole environment of one learner; the service's variables override the user's."""
    env = dict(base)
    env.update(dict.fromkeys(_THREADS, str(plan.resources.threads_per_learner)))
    env["PYTHONUNBUFFERED"] = "1"
    if plan.environment.site_python:  # on further nodes mpirun puts the folder of its own first
        env["PATH"] = f"{Path(plan.environment.python).parent}:{env.get('PATH', os.defpath)}"
    env.update(plan.env)
    env.update(secrets)
    env.update(service_variables(job_dir, attempt, ranks))
    env["TRAINING_SEED"] = str(plan.training.seed)
    if plan.weights is not None:
        env["WEIGHTS_FILE"] = str(job_dir / plan.weights.file)
    # Those that the service's open-source successor sets besides.
    env["TRAINING_ID"] = plan.training_id
    env["GPU_COUNT"] = f"{plan.resources.gpus_per_learner:.6f}"
    env["LEARNER_NAME_PREFIX"] = f"learner-{plan.training_id}"
    env["RESULT_BUCKET_DIR"] = str(job_dir / contract.results_dir(attempt))
    env.update(torchrun_variables(ranks, meeting_point))
    return env


def service_variables(job_dir: Path, attempt: int, ranks: Ranks) -> dict[str, str]:
    """Return the variables that the service sets for every learner."""
    return {
        "DATA_DIR": str(job_dir / contract.DATA),
        "RESULT_DIR": str(job_dir / contract.results_dir(attempt)),
        "MODEL_DIR": str(job_dir / contract.CODE),
        "CHECKPOINT_DIR": str(job_dir / contract.CHECKPOINTS),
        "LOG_DIR": str(job_dir / contract.LOGS),
        "JOB_STATE_DIR": str(job_dir / contract.JOB_STATE),
        "LEARNER_ID": str(ranks.rank + 1),
        "NUM_LEARNERS": str(ranks.size),
    }


def torchrun_variables(ranks: Ranks, meeting_point: Preflight) -> dict[str, str]:
    """Return the variables that torchrun would set, so that its scripts run unchanged."""
    return {
        "RANK": str(ranks.rank),
        "WORLD_SIZE": str(ranks.size),
        "LOCAL_RANK": str(ranks.local_rank),
        "LOCAL_WORLD_SIZE": str(ranks.local_size),
        "GROUP_RANK": str(ranks.node_rank),
        "NODE_RANK": str(ranks.node_rank),
        "MASTER_ADDR": meeting_point.address,
        "MASTER_PORT": str(meeting_point.port),
    }


def quiet_mpi(env: Mapping[str, str], devices: Path = RDMA_DEVICES) -> dict[str, str]:
    """Return the variables that silence Open MPI's error line at each window without UCX device.

    Without a device for UCX, Open MPI 5 prints "OSC UCX component priority set inside component
    query failed" for each window, and then uses another component. These variables select no
    component. If there is a device, or the user has set anything about UCX, they are not set, and
    Open MPI prints its messages.
    """
    theirs = (f"{name} {value}" for name, value in env.items() if name.startswith("OMPI_MCA_"))
    if any("ucx" in setting for setting in theirs) or (devices.is_dir() and any(devices.iterdir())):
        return {}
    return {"OMPI_MCA_opal_common_ucx_verbose": "-1"}


def resolve_secrets(plan: Plan, base: Mapping[str, str]) -> dict[str, str]:
    """Return the value of each secret variable. Never print the result.

    Raises:
        UserFault: a reference can't be resolved on this node; the message never holds its value.
    """
    return {
        name: resolve_secret(name, reference, Path(plan.root), base)
        for name, reference in plan.secret_env.items()
    }


def known_secrets(plan: Plan, base: Mapping[str, str]) -> list[str]:
    """Return the values of the secret variables that can be resolved here. Never print them."""
    found = []
    for name, reference in plan.secret_env.items():
        with contextlib.suppress(UserFault):
            found.append(resolve_secret(name, reference, Path(plan.root), base))
    return found


SHARED_VARIABLE = "DLCTL_SHARES_GPUS"
"""Set if a step has the GPUs of other learners, too."""


def step_gpus(env: Mapping[str, str]) -> str:
    """Return the scheduler's numbers of a step's GPUs, whatever numbers its programs see."""
    return next((env[each.gpus_variable] for each in LAUNCHERS.values()
                 if env.get(each.gpus_variable)), "")  # fmt: skip


def own_gpus(env: Mapping[str, str], before: str, gpus: int, local_rank: int) -> str:
    """Return the scheduler's numbers of the GPUs that a learner should use, "" if it gives none.

    Args:
        before: what this function returned for the learner's previous start, or "".
        local_rank: the learner's place on the node, which decides if `before` is unknown.
    """
    there = step_gpus(env)
    if not env.get(SHARED_VARIABLE):
        return there
    visible = there.split(",")
    had = before.split(",")
    if set(had) <= set(visible):
        return before
    return ",".join(visible[local_rank * gpus :][:gpus]) or there


def visible_devices(env: Mapping[str, str], own: str) -> dict[str, str]:
    """Return variables that restrict a learner to its own GPUs; none if it sees no others."""
    visible = step_gpus(env).split(",")
    if not env.get(SHARED_VARIABLE) or not set(own.split(",")) < set(visible):
        return {}
    found = {}
    for name in GPU_VARIABLES:
        devices = env.get(name, "").split(",")
        if len(devices) == len(visible):
            found[name] = ",".join(devices[visible.index(gpu)] for gpu in own.split(","))
    return found
