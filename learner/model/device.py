"""Threads, determinism and the device of one learner."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable

import torch
import torch.utils.deterministic

from dlctl.contract import Resources


def prepare(resources: Resources, local_rank: int, warn: Callable[[str], None]) -> torch.device:
    """Set threads and deterministic algorithms; return the device this learner trains on."""
    torch.set_num_threads(max(1, resources.threads_per_learner))
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # The same as use_deterministic_algorithms, which would also load torch's compiler.
    os.environ.setdefault("TORCHINDUCTOR_DETERMINISTIC", "1")
    torch.set_deterministic_debug_mode("warn")
    # Filling memory takes time and only helps debugging. (mypy sees no setter on the module.)
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010
    # Warn once about each operation without a deterministic form, not at every step.
    warnings.filterwarnings("once", message=".*does not have a deterministic implementation.*")
    return _device(resources.gpus_per_learner, local_rank, warn)


def _device(gpus: int, local_rank: int, warn: Callable[[str], None]) -> torch.device:
    if gpus == 0:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        warn(
            f"the plan has {gpus} GPUs for this learner, but torch {torch.__version__} sees none: "
            "training continues without"
        )
        return torch.device("cpu")
    device = torch.device("cuda", device_index(torch.cuda.device_count(), gpus, local_rank))
    torch.cuda.set_device(device)
    return device


def device_index(visible: int, gpus: int, local_rank: int) -> int:
    """Return this learner's first GPU among the visible ones.

    Slurm shows a task either its own GPUs only (they are numbered from 0) or the node's.
    """
    return 0 if visible <= gpus else local_rank * gpus % visible
