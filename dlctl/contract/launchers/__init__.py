"""Launchers, which start a job's learners: one class for each.

A launcher is a contract between both sides: the plan writes its command line, and each process on
the nodes reads its rank from the variables that it sets. Both halves are therefore in one file that
uses only the standard library. To add a launcher, write its file and add its class here.
"""

from __future__ import annotations

from collections.abc import Mapping

from dlctl.contract.launchers.base import (
    Lack,
    Launcher,
    LaunchError,
    LaunchRequest,
    Ranks,
    SrunSteps,
)
from dlctl.contract.launchers.mpirun import Mpirun
from dlctl.contract.launchers.srun import Srun

LAUNCHERS: dict[str, Launcher] = {
    launcher.kind: launcher for launcher in (Srun(), Mpirun(), Launcher())
}
SITE_LAUNCHERS = tuple(kind for kind, launcher in LAUNCHERS.items() if launcher.for_sites)
"""The launchers that a site's file may name."""
_TORCHRUN = "TORCHELASTIC_"
_RANKS = {
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
    "NODE_RANK", "MASTER_ADDR", "MASTER_PORT",
}  # fmt: skip


GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
"""By one of these a scheduler says which GPUs a job has: numbers, or names as `GPU-3f2a`."""


def outside_of_job(env: Mapping[str, str], launcher: Launcher | None = None) -> dict[str, str]:
    """Return an environment without the marks of a job and of the launcher of this process.

    Args:
        launcher: which is to start processes in the job all the same.
    """
    prefixes = (_TORCHRUN, *(prefix for each in LAUNCHERS.values() for prefix in each.prefixes))
    kept = launcher.allocation if launcher else ()
    return {
        name: value for name, value in env.items()
        if name in kept or name not in _RANKS and not name.startswith(prefixes)
    }  # fmt: skip


__all__ = [
    "GPU_VARIABLES",
    "LAUNCHERS",
    "SITE_LAUNCHERS",
    "Lack",
    "LaunchError",
    "LaunchRequest",
    "Launcher",
    "Ranks",
    "SrunSteps",
    "outside_of_job",
]
