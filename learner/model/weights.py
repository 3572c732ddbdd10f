"""Compare and load states of a model, from `framework.arguments.weights` or a checkpoint.

States are kept by plain names: those that the model's tensors have without torch.compile and
DataParallel, which put `_orig_mod.` and `module.` before them.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel

from learner.errors import UserFault

_WRAPPERS = ("state_dict", "model_state_dict", "model")
_MOST_NAMED = 3
_COMPILED, _PARALLEL = "_orig_mod.", "module."


def unwrap(model: torch.nn.Module) -> torch.nn.Module:
    """Return the user's model without DistributedDataParallel, DataParallel and torch.compile."""
    while True:
        if isinstance(model, (DistributedDataParallel, DataParallel)):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), torch.nn.Module):
            model = inner
        else:
            return model


def state_of(model: torch.nn.Module) -> dict[str, Any]:
    """Return a model's state by plain names."""
    return _plain(unwrap(model).state_dict())


def buffers_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return a model's buffers by plain names."""
    return _plain(dict(unwrap(model).named_buffers()))


def _plain(state: Mapping[str, Any]) -> dict[str, Any]:
    return {str(name).replace(_COMPILED, ""): value for name, value in state.items()}


def _put(model: torch.nn.Module, state: Mapping[str, Any], *, strict: bool) -> None:
    """Load a state that has plain names."""
    inner = unwrap(model)
    own = {name.replace(_COMPILED, ""): name for name in inner.state_dict()}
    inner.load_state_dict({own[name]: value for name, value in state.items()}, strict=strict)


def load_weights(path: Path) -> dict[str, Any]:
    """Read a state_dict (for example a training's `results/model.pt`) without executing code in it.

    Raises:
        UserFault: no such file, or not a plain state_dict.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UserFault(
            f"framework.arguments.weights names {path}, which does not exist",
            hint="give a path relative to the manifest's folder, or to DATA_DIR",
        ) from None
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise UserFault(
            f"framework.arguments.weights: {path} is no plain state_dict: {_first_line(error)}",
            hint="save it with torch.save(model.state_dict(), path)",
        ) from None
    if isinstance(state, Mapping):
        inner = (state.get(key) for key in _WRAPPERS)
        state = next((each for each in inner if isinstance(each, Mapping)), state)
    if not isinstance(state, Mapping):
        raise UserFault(
            f"framework.arguments.weights: {path} holds a {type(state).__name__}, no state_dict",
            hint="save it with torch.save(model.state_dict(), path)",
        )
    return dict(state)


def find_weights(name: str, code_dir: Path) -> Path:
    """Return the file that `framework.arguments.weights` names: in the code, or in DATA_DIR."""
    in_code = code_dir / name
    data_dir = os.environ.get("DATA_DIR")
    if not in_code.exists() and data_dir and (Path(data_dir) / name).exists():
        return Path(data_dir) / name
    return in_code


def start_from(
    model: torch.nn.Module, state: Mapping[str, Any], *, strict: bool
) -> tuple[int, list[str]]:
    """Load weights into a model, saved with or without torch.compile, DataParallel and the like.

    Returns:
        How many of the model's tensors are loaded, and a description of each skipped one.

    Raises:
        UserFault: strict, and the names or shapes differ; or nothing fits.
    """
    mine, state = state_of(model), _plain(state)
    if not mine.keys() & state.keys() and all(name.startswith(_PARALLEL) for name in state):
        state = {name.removeprefix(_PARALLEL): value for name, value in state.items()}
    found = differences(mine, state)
    if found and strict:
        raise UserFault(
            f"framework.arguments.weights does not fit the model: {_some(found)}",
            hint="set framework.arguments.weights_strict to false to load only what fits",
        )
    fitting = {k: v for k, v in state.items() if k in mine and _shape(v) == _shape(mine[k])}
    if mine and not fitting:
        raise UserFault(
            f"framework.arguments.weights fits none of the model's {len(mine)} tensors: "
            f"{'; '.join(dict.fromkeys((found[0], found[-1])))}",
            hint="name the weights of such a model, or rename its layers as in the file; without "
            "framework.arguments.weights the training begins from random weights",
        )
    _put(model, fitting, strict=False)
    return len(fitting), found


def restore_model(model: torch.nn.Module, state: Mapping[str, Any], where: str) -> None:
    """Load a checkpoint's state into a model.

    Raises:
        UserFault: the checkpoint is of another model.
    """
    state = _plain(state)  # older versions kept the names of compiled models
    if found := differences(state_of(model), state):
        raise UserFault(
            f"the checkpoint {where} is of another model: {_some(found)}",
            hint="resume needs the same model; submit a changed one as a new training",
        )
    _put(model, state, strict=True)


def restore_buffers(model: torch.nn.Module, stored: Mapping[str, torch.Tensor]) -> None:
    """Set the buffers that a learner stored as its own."""
    buffers = buffers_of(model)
    with torch.no_grad():
        for name, value in _plain(stored).items():
            buffers[name].copy_(value)


def differences(model: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return how another state differs from the model's, in words."""
    found = [f"{name} is missing" for name in model if name not in other]
    found += [f"{name} is not in the model" for name in other if name not in model]
    found += [
        f"{name} has the shape {_shape(other[name])}, the model's {_shape(model[name])}"
        for name in model
        if name in other and _shape(model[name]) != _shape(other[name])
    ]
    return found


def _shape(value: Any) -> tuple[int, ...] | None:
    return tuple(value.shape) if isinstance(value, torch.Tensor) else None


def _some(found: list[str]) -> str:
    more = len(found) - _MOST_NAMED
    return "; ".join(found[:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
