"""`examples/digits` with one learner that computes four times as long: a `framework.job` file.

After each backward pass it sleeps three times the processor time of forward and backward.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
import train  # type: ignore[import-not-found] # the example's own file

_TIMES_MORE = 3.0


def build(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the example's parts."""
    parts: dict[str, Any] = train.build(arguments)
    rank, model = int(os.environ["RANK"]), parts["model"]
    began_s = [0.0]

    def begin(module: torch.nn.Module, _: Any) -> None:
        if module.training and not began_s[0]:  # the first step: the clock starts
            file = Path(os.environ["JOB_STATE_DIR"]) / f"began-{rank}"
            file.write_text(str(time.time()))
        began_s[0] = time.thread_time()

    def sleep(_: torch.Tensor) -> None:
        time.sleep(_TIMES_MORE * (time.thread_time() - began_s[0]))

    model.register_forward_pre_hook(begin)
    if rank == arguments["slow"]:
        # The first layer's gradient comes last.
        next(model.parameters()).register_post_accumulate_grad_hook(sleep)
    return parts
