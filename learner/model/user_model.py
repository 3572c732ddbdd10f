"""Load the user's file of `framework.job` and check what its `build(arguments)` returns.

The file is loaded by its path under a private module name, and its folder comes last on `sys.path`:
a `typing.py` or `learner.py` beside it shadows nothing.
"""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils.data import IterableDataset

from dlctl.contract.metrics import RESERVED
from learner.errors import UserFault

MODULE_NAME = "dlctl_user_program"
REQUIRED = ("model", "optimizer", "loss", "train")
OPTIONAL = ("validation", "metrics", "schedule", "solver")


@dataclass
class Parts:
    """The parts that `build` returned, after the checks."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[Any, Any], torch.Tensor]
    """(outputs, targets) → the mean loss over the batch, a scalar."""
    train: Any
    """A map-style dataset of (inputs, target)."""
    validation: Any = None
    metrics: dict[str, Callable[[Any, Any], Any]] = field(default_factory=dict)
    """(outputs, targets) → the mean over the batch."""
    schedule: Any = None
    """A torch learning-rate scheduler; replaces the manifest's schedule."""
    pace: str = ""
    """What the scheduler takes a step after, "epoch" or "batch"; empty if `build` does not say."""
    solver: Any = None
    """For parameter_server.solver: own. See psrv.rules."""


def load_build(path: Path) -> Callable[[dict[str, Any]], Any]:
    """Return the `build` function of a user's file.

    Raises:
        UserFault: no such file, a syntax error, or no usable `build`.
    """
    module = _load(path)
    build = getattr(module, "build", None)
    if build is None:
        raise UserFault(
            f"{path.name} defines no function build(arguments)",
            hint="it returns a dict with the keys model, optimizer, loss and train",
        )
    if not callable(build):
        raise UserFault(f"build in {path.name} is {_kind(build)}, not a function")
    _check_signature(build, path.name)
    return build  # type: ignore[no-any-return]


def _load(path: Path) -> ModuleType:
    if not path.is_file():
        raise UserFault(
            f"there is no file {path.name} in {path.parent}",
            hint="framework.job names a Python file, relative to the manifest's folder",
        )
    spec = importlib.util.spec_from_file_location(MODULE_NAME, path)
    if spec is None or spec.loader is None:
        raise UserFault(f"{path.name} is no Python file", hint="its name must end with .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE_NAME] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        where = f"{Path(error.filename or path).name}, line {error.lineno}"
        text = (error.text or "").strip()
        raise UserFault(
            f"{where}: {error.msg}: {text}" if text else f"{where}: {error.msg}"
        ) from None
    return module


def _check_signature(build: Callable[..., Any], name: str) -> None:
    try:
        inspect.signature(build).bind({})
    except TypeError:
        raise UserFault(
            f"build in {name} must take one argument, the dict framework.arguments",
            hint=f"it is defined as build{inspect.signature(build)}",
        ) from None
    except ValueError:  # no signature known (a C function): let the call decide
        return


def build_parts(build: Callable[[dict[str, Any]], Any], arguments: dict[str, Any]) -> Parts:
    """Call `build` and check every part of what it returns.

    Raises:
        UserFault: unknown or missing keys, or a part of a wrong type.
    """
    returned = build(dict(arguments))
    if not isinstance(returned, Mapping):
        raise UserFault(
            f"build returned {_kind(returned)}, not a dict",
            hint=f"its keys are {', '.join(REQUIRED)}, and optionally {', '.join(OPTIONAL)}",
        )
    _check_keys(returned)
    parts = Parts(**{key: value for key, value in returned.items() if value is not None})
    if isinstance(parts.schedule, Mapping):
        parts.schedule, parts.pace = _with_pace(parts.schedule)
    _check_types(parts)
    _check_optimizer(parts)
    return parts


def _check_keys(returned: Mapping[str, Any]) -> None:
    allowed = (*REQUIRED, *OPTIONAL)
    for key in returned:
        if key not in allowed:
            close = difflib.get_close_matches(str(key), allowed, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"allowed are {', '.join(allowed)}"
            raise UserFault(f"build returned an unknown key {key!r}", hint=hint)
    missing = [key for key in REQUIRED if returned.get(key) is None]
    if missing:
        raise UserFault(f"build returned no {' and no '.join(missing)}")


def _with_pace(given: Mapping[str, Any]) -> tuple[Any, str]:
    pace = given.get("step", "epoch")
    if not given.keys() <= {"scheduler", "step"} or pace not in ("epoch", "batch"):
        raise UserFault(
            f"build returned the schedule {dict(given)!r}",
            hint='its keys are "scheduler" and "step", which is "epoch" or "batch"',
        )
    return given.get("scheduler"), pace


def _check_types(parts: Parts) -> None:
    if not isinstance(parts.model, torch.nn.Module):
        raise _wrong("model", parts.model, "a torch.nn.Module")
    if not isinstance(parts.optimizer, torch.optim.Optimizer):
        raise _wrong("optimizer", parts.optimizer, "a torch.optim.Optimizer")
    if not callable(parts.loss):
        raise _wrong("loss", parts.loss, "a function of (outputs, targets)")
    _check_dataset("train", parts.train)
    if parts.validation is not None:
        _check_dataset("validation", parts.validation)
    if not isinstance(parts.metrics, dict):
        raise _wrong("metrics", parts.metrics, "a dict of name: function(outputs, targets)")
    for name, function in parts.metrics.items():
        if not isinstance(name, str) or not callable(function):
            raise _wrong(f"metrics[{name!r}]", function, "a function of (outputs, targets)")
        if name in RESERVED or name.startswith("validation_"):
            raise UserFault(f"a metric can't be called {name!r}", hint="the loop uses this name")
    if (parts.schedule is not None or parts.pace) and not _is_schedule(parts.schedule):
        raise _wrong("schedule", parts.schedule, "a scheduler of torch.optim.lr_scheduler")


def _is_schedule(value: Any) -> bool:
    return all(callable(getattr(value, name, None)) for name in ("step", "state_dict"))


def _check_dataset(key: str, dataset: Any) -> None:
    if isinstance(dataset, torch.utils.data.DataLoader):
        raise _wrong(key, dataset, "a dataset (the loop divides it into batches by itself)")
    sized = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if isinstance(dataset, IterableDataset) or not sized:
        raise _wrong(key, dataset, "a map-style dataset, with __len__ and __getitem__")
    if len(dataset) == 0:
        raise UserFault(f"the dataset {key!r} that build returned is empty")


def _check_optimizer(parts: Parts) -> None:
    known = {id(parameter) for parameter in parts.model.parameters()}
    groups = parts.optimizer.param_groups
    if any(id(parameter) not in known for group in groups for parameter in group["params"]):
        raise UserFault(
            "the optimizer holds a parameter that is not in the model",
            hint="make the optimizer from model.parameters() of the model that build returns; "
            "parameters of a loss belong in the model",
        )
    if not any(parameter.requires_grad for parameter in parts.model.parameters()):
        raise UserFault("no parameter of the model requires a gradient: nothing can be trained")


def _wrong(key: str, value: Any, wanted: str) -> UserFault:
    return UserFault(f"build returned {_kind(value)} as {key!r}; it must be {wanted}")


def _kind(value: Any) -> str:
    return "None" if value is None else f"an object of the type {type(value).__name__}"
