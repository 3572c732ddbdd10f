"""A copy of a model for serving: on the CPU, in eval mode, without wrappers from training."""

from __future__ import annotations

import copy
from typing import Any

import torch

from learner.errors import UserFault
from learner.model.weights import unwrap

_HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
    "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called",
)  # fmt: skip


def copy_of(model: torch.nn.Module) -> torch.nn.Module:
    """Return a copy on the CPU in eval mode, with its hooks; the model itself stays unchanged.

    Each tensor gets memory of its own, of just its size: a weight that lives in a window shared
    with other learners must not bring the whole window along. Tied weights stay tied.

    Raises:
        UserFault: the model can't be copied.
    """
    model = unwrap(model)
    memo: dict[int, Any] = {}
    for module in model.modules():
        for tensor in _tensors(module):
            if id(tensor) not in memo:
                memo[id(tensor)] = _own(tensor)
    try:
        copied = copy.deepcopy(model, memo)
    except Exception as error:
        raise UserFault(
            f"the model {type(model).__name__} can't be copied: {_first_line(error)}",
            hint="keep what can't be copied (a lock, a file, a communicator) out of the model",
        ) from error
    _unwrap_children(copied)
    return copied.eval()


def remove_hooks(model: torch.nn.Module) -> None:
    """Remove every hook; hooks of torch.nn.utils, which compute a weight, leave the weight."""
    for module in model.modules():
        for hook in list(module._forward_pre_hooks.values()):
            if type(hook).__module__.startswith("torch.nn.utils") and hasattr(hook, "remove"):
                hook.remove(module)  # weight_norm, spectral_norm, prune
        for name in _HOOKS:
            getattr(module, name, {}).clear()


def _tensors(module: torch.nn.Module) -> list[torch.Tensor]:
    own = [*module._parameters.values(), *module._buffers.values(), *module.__dict__.values()]
    return [value for value in own if isinstance(value, torch.Tensor)]


def _own(tensor: torch.Tensor) -> torch.Tensor:
    if torch.nn.parameter.is_lazy(tensor):
        raise UserFault(
            "a lazy layer of the model has no weights yet",
            hint="run the model once on a batch before it is exported",
        )
    values = tensor.detach().to("cpu").clone(memory_format=torch.contiguous_format)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(values, requires_grad=False)
    return values


def _unwrap_children(model: torch.nn.Module) -> None:
    for module in list(model.modules()):
        for name, child in module._modules.items():
            if child is not None:
                module._modules[name] = unwrap(child)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
