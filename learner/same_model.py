"""Check at the start that every learner has built the same model and data."""

from __future__ import annotations

import hashlib
from itertools import zip_longest

import torch

from learner.exchange import Exchange
from learner.faults import UserFault
from learner.model_file import Parts


def describe(parts: Parts) -> list[str]:
    """Return everything that must be the same on all learners, one line each."""
    lines = [f"model {type(parts.model).__name__}", f"optimizer {type(parts.optimizer).__name__}"]
    lines += [
        f"parameter {name} {_tensor(p)}{'' if p.requires_grad else ' frozen'}"
        for name, p in parts.model.named_parameters()
    ]
    lines += [f"buffer {name} {_tensor(b)}" for name, b in parts.model.named_buffers()]
    for number, group in enumerate(parts.optimizer.param_groups):
        lines.append(f"optimizer group {number}: {len(group['params'])} parameters")
    lines.append(f"training samples {len(parts.train)}")
    if parts.validation is not None:
        lines.append(f"validation samples {len(parts.validation)}")
    lines += [f"metric {name}" for name in parts.metrics]
    return lines


def check_same(parts: Parts, exchange: Exchange) -> None:
    """Stop where learners differ, naming the first difference.

    Raises:
        UserFault: on every learner, if any of them differs from rank 0.
    """
    mine = describe(parts)
    digests = exchange.collect(hashlib.sha256("\n".join(mine).encode()).hexdigest())
    if len(set(digests)) == 1:
        return
    other = next(rank for rank, digest in enumerate(digests) if digest != digests[0])
    everyone = exchange.collect(mine)
    for ours, theirs in zip_longest(everyone[0], everyone[other], fillvalue="nothing"):
        if ours != theirs:
            raise UserFault(
                f"the learners built different trainings: rank 0 has {ours!r}, "
                f"rank {other} has {theirs!r}",
                hint="build(arguments) must return the same on every learner; the loop itself "
                "divides the data",
            )


def _tensor(tensor: torch.Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
