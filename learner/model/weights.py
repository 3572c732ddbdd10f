"""Compare and load states of a model, from `framework.arguments.weights` or a checkpoint."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from learner.errors import UserFault

_WRAPPERS = ("state_dict", "model")
_MOST_NAMED = 3


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
    if isinstance(state, Mapping) and len(state) == 1:
        key = next(iter(state))
        state = state[key] if key in _WRAPPERS and isinstance(state[key], Mapping) else state
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


def start_from(model: torch.nn.Module, state: dict[str, Any], *, strict: bool) -> list[str]:
    """Load weights into a model; if not strict, return a description of each skipped one.

    Raises:
        UserFault: strict, and the names or shapes differ.
    """
    found = differences(model.state_dict(), state)
    if found and strict:
        raise UserFault(
            f"framework.arguments.weights does not fit the model: {_some(found)}",
            hint="set framework.arguments.weights_strict to false to load only what fits",
        )
    mine = model.state_dict()
    fitting = {k: v for k, v in state.items() if k in mine and _shape(v) == _shape(mine[k])}
    model.load_state_dict(fitting, strict=False)
    return found


def restore_model(model: torch.nn.Module, state: dict[str, Any], where: str) -> None:
    """Load a checkpoint's state into a model.

    Raises:
        UserFault: the checkpoint is of another model.
    """
    if found := differences(model.state_dict(), state):
        raise UserFault(
            f"the checkpoint {where} is of another model: {_some(found)}",
            hint="resume needs the same model; submit a changed one as a new training",
        )
    model.load_state_dict(state)


def restore_buffers(model: torch.nn.Module, stored: Mapping[str, torch.Tensor]) -> None:
    """Set the buffers that a learner stored as its own."""
    buffers = dict(model.named_buffers())
    with torch.no_grad():
        for name, value in stored.items():
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
