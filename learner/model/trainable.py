"""Checks that the built-in loop can train what `build` returned, before anything is exchanged."""

from __future__ import annotations

import inspect

import torch
from torch.nn.parameter import is_lazy

from learner.errors import UserFault
from learner.model.user_model import Parts

_WITH_GROUPS = ("DistributedDataParallel", "FullyShardedDataParallel")
"""By name: to import the latter takes a second."""


def check_trainable(parts: Parts, learners: int) -> None:
    """Check model and optimizer.

    Raises:
        UserFault: the loop can't train them, or would train something else.
    """
    for module in parts.model.modules():
        if type(module).__name__ in _WITH_GROUPS:
            raise UserFault(
                f"build returned a model with {type(module).__name__}, and the built-in loop "
                "averages the gradients, too",
                hint="return the model without it: the loop itself trains it with all learners",
            )
    if learners > 1:
        refuse_batch_statistics(parts.model)
    for name, tensor in (*parts.model.named_parameters(), *parts.model.named_buffers()):
        if is_lazy(tensor) or tensor.is_meta:
            state = "is on the device meta" if tensor.is_meta else "is lazy"
            raise UserFault(
                f"{name} of the model has no values yet: it {state}",
                hint="name the layer's size in place of Lazy…, or call the model in build() with a "
                "sample before you make the optimizer; to_empty(device='cpu') takes it off meta",
            )
    _check_step(parts.optimizer)


def refuse_batch_statistics(model: torch.nn.Module) -> None:
    """Refuse layers whose batch statistics only torch.distributed joins.

    Raises:
        UserFault: the model has a SyncBatchNorm, which would silently be a plain BatchNorm.
    """
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.SyncBatchNorm):
            raise UserFault(
                f"the model's layer {name or 'itself'} is a SyncBatchNorm, whose statistics only "
                "torch.distributed joins: each learner would use those of its own samples",
                hint="use BatchNorm, with a larger batch, or GroupNorm, which needs no statistics "
                "of a batch; a script of your own may call torch.distributed.init_process_group "
                "before, and needs GPUs",
            )


def _check_step(optimizer: torch.optim.Optimizer) -> None:
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise UserFault(
            f"the optimizer {type(optimizer).__name__} computes the loss several times in a step "
            "(a closure), and the built-in loop does so once",
            hint="use another optimizer, such as SGD or AdamW, or your own loop: "
            "framework.command with learner.ddl, whose DistributedOptimizer takes a closure",
        )
