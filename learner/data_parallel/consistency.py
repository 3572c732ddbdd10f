"""Checks, at the start, that every learner has built the same model and data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

import torch

from learner.data_parallel.buckets import is_dense
from learner.errors import UserFault
from learner.exchange.base import Exchange

if TYPE_CHECKING:
    from learner.model.user_model import Parts


def describe(parts: Parts) -> list[str]:
    """Return everything that must be the same on all learners, one line each."""
    lines = [f"model {type(parts.model).__name__}", f"optimizer {type(parts.optimizer).__name__}"]
    lines += describe_parameters(parts.model.named_parameters())
    lines += [f"buffer {name} {_tensor(b)}" for name, b in parts.model.named_buffers()]
    for number, group in enumerate(parts.optimizer.param_groups):
        lines.append(f"optimizer group {number}: {len(group['params'])} parameters")
    lines.append(f"training samples {len(parts.train)}")
    if parts.validation is not None:
        lines.append(f"validation samples {len(parts.validation)}")
    lines += [f"metric {name}" for name in parts.metrics]
    return lines


def describe_parameters(named: Iterable[tuple[str, torch.Tensor]]) -> list[str]:
    """Return names, shapes and dtypes of parameters, one line each."""
    return [f"parameter {name} {_parameter(parameter)}" for name, parameter in named]


def check_same(parts: Parts, exchange: Exchange) -> None:
    """Check that all learners built the same training; name the first difference.

    Raises:
        UserFault: On every learner, if any of them differs from rank 0.
    """
    check_same_lines(
        describe(parts),
        exchange,
        what="the learners built different trainings",
        hint="build(arguments) must return the same on every learner; the loop itself divides the "
        "data",
    )


def check_same_parameters(
    parameters: Iterable[torch.Tensor], names: Iterable[str], exchange: Exchange
) -> None:
    """Check that all learners have the same parameters; name the first difference.

    Raises:
        UserFault: On every learner, if any of them differs from rank 0.
    """
    mine = [f"{name} {_parameter(p)}" for name, p in zip(names, parameters, strict=True)]
    check_same_lines(
        mine,
        exchange,
        what="the learners' parameters differ",
        hint="build the same model on every learner, from the same arguments",
    )


def check_same_lines(mine: Sequence[str], exchange: Exchange, *, what: str, hint: str) -> None:
    """Check that all learners have the same lines; name the first difference.

    Raises:
        UserFault: On every learner, if any of them differs from rank 0.
    """
    pairs = zip_longest(exchange.share(list(mine)), mine, fillvalue="nothing")
    found = next(((ours, theirs) for ours, theirs in pairs if ours != theirs), None)
    for rank, difference in enumerate(exchange.collect(found)):
        if difference is not None:
            first, other = difference
            raise UserFault(f"{what}: rank 0 has {first}, rank {rank} has {other}", hint=hint)


def _parameter(tensor: torch.Tensor) -> str:
    frozen = isinstance(tensor, torch.nn.Parameter) and not tensor.requires_grad
    return f"{_tensor(tensor)}{' frozen' if frozen else ''}"


def _tensor(tensor: torch.Tensor) -> str:
    text = f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
    if tensor.is_contiguous() or not is_dense(tensor):
        return text  # exchanged in the order of its elements
    steps = zip(tensor.stride(), tensor.shape, strict=True)
    return f"{text} with strides {tuple(step if length > 1 else 1 for step, length in steps)}"
