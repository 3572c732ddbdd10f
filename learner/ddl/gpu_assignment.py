"""GPU assignment: which GPU each learner of a node gets."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from learner.errors import UserFault


def assign(preferred: Sequence[int | None], gpus: int) -> list[int | None]:
    """Return a GPU for each learner of a node, in local rank order; None if there are none.

    A learner gets its preferred GPU unless a lower local rank has it; the others take what is free,
    in order. If learners outnumber GPUs, these are shared evenly.

    Raises:
        UserFault: A preferred GPU does not exist.
    """
    for local_rank, gpu in enumerate(preferred):
        if gpu is not None and not 0 <= gpu < gpus:
            raise UserFault(
                f"the learner with local rank {local_rank} prefers the GPU {gpu}, "
                f"and this node shows it {gpus}",
                hint="GPUs are numbered from 0, among those in CUDA_VISIBLE_DEVICES",
            )
    if gpus == 0:
        return [None] * len(preferred)
    users = [0] * gpus
    given: list[int | None] = [None] * len(preferred)
    for local_rank, gpu in enumerate(preferred):
        if gpu is not None and users[gpu] == 0:
            given[local_rank] = gpu
            users[gpu] = 1
    for local_rank, got in enumerate(given):
        if got is None:
            choice = users.index(min(users))
            given[local_rank] = choice
            users[choice] += 1
    return given


@dataclass(frozen=True)
class GpuRequest:
    """The GPUs that one learner of a node sees, and the one it prefers."""

    visible: str
    """CUDA_VISIBLE_DEVICES: Slurm may show each learner a GPU of its own, all with number 0."""
    gpus: int
    preferred: int | None


def detect_gpus(user_gpuid: int | None, *, pci: bool) -> GpuRequest:
    """Return the GPUs that this learner sees.

    Args:
        user_gpuid: The GPU that it prefers.
        pci: Number GPUs by their place on the PCI bus instead of by speed.
    """
    if pci and not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return GpuRequest(os.environ.get("CUDA_VISIBLE_DEVICES", ""), gpus, user_gpuid)


def choose(requests: Sequence[GpuRequest], local_rank: int) -> int | None:
    """Return the GPU of one learner, given the requests of all learners of its node."""
    mine = requests[local_rank]
    alike = [i for i, w in enumerate(requests) if (w.visible, w.gpus) == (mine.visible, mine.gpus)]
    return assign([requests[i].preferred for i in alike], mine.gpus)[alike.index(local_rank)]
