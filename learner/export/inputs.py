"""The inputs for tracing and checking an exported model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

Inputs = tuple[Any, ...]
"""The positional arguments of a model."""


@dataclass(frozen=True)
class Case:
    """Inputs on which both models are run."""

    what: str
    """A description for messages, for example `a batch of 1`."""
    inputs: Inputs
    other_batch: bool = False
    """Whether the batch size differs from the example's."""


def as_inputs(example: Any) -> Inputs:
    """Return positional arguments on the CPU: a tuple or list is those, all else is the only one.

    A batch of 1 becomes one of 2, because tracers take a dimension of 1 for a constant.
    """
    given = tuple(example) if isinstance(example, (tuple, list)) else (example,)
    inputs: Inputs = tree_map(_to_cpu, given)
    return take(inputs, [0, 0]) if batch_size(inputs) == 1 else inputs


def _to_cpu(value: Any) -> Any:
    return value.detach().cpu().clone() if isinstance(value, torch.Tensor) else value


def batch_size(inputs: Inputs) -> int | None:
    """Return the first dimension of the first tensor that has one: its batch."""
    return next((leaf.shape[0] for leaf in tree_leaves(inputs) if _has_rows(leaf)), None)


def _has_rows(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim > 0 and value.shape[0] > 0


def is_batched(value: Any, size: int | None) -> bool:
    """Return whether a value has one row for each sample of the batch."""
    return _has_rows(value) and value.shape[0] == size


def take(inputs: Inputs, rows: list[int]) -> Inputs:
    """Return some rows of every batched tensor."""
    size = batch_size(inputs)
    where = torch.tensor(rows)
    taken: Inputs = tree_map(lambda v: v[where] if is_batched(v, size) else v, inputs)
    return taken


def cases(inputs: Inputs, others: list[Inputs]) -> Iterator[Case]:
    """Yield the example, other values and other batch sizes, on which a wrong export fails."""
    yield Case("the example", inputs)
    size = batch_size(inputs)
    for number, other in enumerate(others, 1):
        yield Case(f"further input {number}", other, batch_size(other) != size)
    turned = inputs if size is None else take(inputs, list(range(size))[::-1])
    yield Case("negated values", tree_map(_changed(lambda v, noise: noise - v), turned))
    yield Case("large values", tree_map(_changed(lambda v, noise: 10 * v + noise), turned))
    yield Case("zeros", tree_map(_changed(lambda v, _: torch.zeros_like(v)), inputs))
    if size is not None:
        yield Case("a batch of 1", take(inputs, [size - 1]), other_batch=True)
        more = [row % size for row in range(size + 3)]
        yield Case(f"a batch of {size + 3}", take(inputs, more), other_batch=True)


def _changed(
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Callable[[Any], Any]:
    """Return a function that changes floating-point tensors and leaves indices alone."""
    generator = torch.Generator().manual_seed(0)

    def change(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        noise = torch.rand(value.shape, generator=generator).to(value.dtype)
        return function(value, noise)

    return change


def dynamic_shapes(model: torch.nn.Module, inputs: Inputs) -> tuple[Any, ...]:
    """Return torch.export's marks for the batch: the first dimension of each batched tensor."""
    size = batch_size(inputs)
    batch = torch.export.Dim("batch")
    shapes = tuple(
        tree_map(lambda v: {0: batch} if is_batched(v, size) else None, value) for value in inputs
    )
    named, has_more = _parameters(model)
    return (*shapes[: len(named)], tuple(shapes[len(named) :])) if has_more else shapes


def input_names(model: torch.nn.Module, inputs: Inputs) -> list[str]:
    """Return a name for each tensor, in order: those of forward's parameters."""
    named, _ = _parameters(model)
    names = []
    for number, value in enumerate(inputs):
        name = named[number] if number < len(named) else f"input_{number}"
        tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
        many = len(tensors) > 1 or tensors != [value]
        names += [f"{name}_{part}" if many else name for part in range(len(tensors))]
    return names


def _parameters(model: torch.nn.Module) -> tuple[list[str], bool]:
    """Return forward's positional parameters, and whether it accepts any number of further ones."""
    kinds = inspect.Parameter
    parameters = inspect.signature(model.forward).parameters.values()
    named = [p.name for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]  # noqa: E501 # fmt: skip
    return named, any(p.kind is kinds.VAR_POSITIONAL for p in parameters)


def copied(inputs: Inputs) -> Inputs:
    """Return a copy of the inputs, which a model may overwrite."""
    copies: Inputs = tree_map(_to_cpu, inputs)
    return copies


def shapes_of(inputs: Inputs) -> list[list[int]]:
    """Return the shape of each tensor, in order."""
    return [list(leaf.shape) for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
