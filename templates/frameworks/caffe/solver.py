"""Caffe's solver file: the learning rate at each iteration, and how long to train. No torch."""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from learner.errors import UserFault

from .prototxt import read

POLICIES = ("fixed", "step", "exp", "inv", "multistep", "poly", "sigmoid")
TYPES = ("SGD", "Nesterov", "Adam", "AdaGrad", "RMSProp", "AdaDelta")
_WITHOUT_MOMENTUM = ("AdaGrad", "RMSProp")
_WITHOUT_EFFECT = (
    "solver_mode", "device_id", "debug_info", "test_initialization", "average_loss",
    "snapshot_diff", "snapshot_format", "snapshot_after_train", "test_compute_loss",
    "layer_wise_reduce", "test_iter", "random_seed",
)  # fmt: skip
"""Fields that mean nothing here: the built-in loop and the manifest decide instead."""


@dataclass(frozen=True)
class Solver:
    """What a solver file asks for: its fields by their names there, with Caffe's defaults."""

    where: str
    base_lr: float
    stepvalue: tuple[int, ...]
    net: str = ""
    train_net: str = ""
    test_net: str = ""
    type: str = ""
    lr_policy: str = "fixed"
    gamma: float = 0.0
    power: float = 0.0
    stepsize: int = 0
    max_iter: int = 0
    momentum: float = 0.0
    momentum2: float = 0.999
    delta: float = 1e-8
    rms_decay: float = 0.99
    weight_decay: float = 0.0
    regularization_type: str = "L2"
    clip_gradients: float = -1.0
    iter_size: int = 1
    display: int = 0
    test_interval: int = 0
    snapshot: int = 0
    snapshot_prefix: str = ""

    def rate(self, iteration: int) -> float:
        """Return the learning rate of an iteration, counted from 0, as Caffe's GetLearningRate."""
        base, gamma = self.base_lr, self.gamma
        if self.lr_policy == "step":
            return base * gamma ** (iteration // self.stepsize)
        if self.lr_policy == "exp":
            return base * gamma**iteration
        if self.lr_policy == "inv":
            return float(base * (1 + gamma * iteration) ** -self.power)
        if self.lr_policy == "multistep":
            return base * gamma ** sum(iteration >= value for value in self.stepvalue)
        if self.lr_policy == "poly":
            return float(base * max(0.0, 1 - iteration / self.max_iter) ** self.power)
        if self.lr_policy == "sigmoid":
            return base / (1 + math.exp(-gamma * (iteration - self.stepsize)))
        return base

    @property
    def model_name(self) -> str:
        """Return the first part of the names of the trained weights, as Caffe makes them."""
        return Path(self.snapshot_prefix).name or "model"


def read_solver(path: Path) -> Solver:
    """Return the solver in a file.

    Raises:
        UserFault: the file can't be read, or asks for what this version lacks.
    """
    found = read(path)
    if not found.has("base_lr"):
        raise UserFault(f"{found.where}: the solver has no base_lr")
    defaults: dict[str, Any] = {
        each.name: each.default for each in fields(Solver) if each.default is not MISSING
    }
    defaults |= {"type": found.get("solver_type", "SGD"), "snapshot_prefix": path.stem}
    values = {name: found.get(name, default) for name, default in defaults.items()}
    kind = values["type"]
    values["type"] = {name.upper(): name for name in TYPES}.get(kind.upper(), kind)
    values["iter_size"] = max(1, values["iter_size"])
    steps = tuple(found.list_of("stepvalue", 0))
    solver = Solver(path.name, found.get("base_lr", 0.0), steps, **values)
    found.refuse_unknown(_WITHOUT_EFFECT, "the solver")
    _check(solver)
    return solver


def _check(solver: Solver) -> None:
    wrong = ""
    if solver.type not in TYPES:
        wrong = f"type is {solver.type!r}; dlctl's small caffe has {', '.join(TYPES)}"
    elif solver.type in _WITHOUT_MOMENTUM and solver.momentum:
        wrong = f"momentum can't be used with {solver.type}, as in Caffe"
    elif solver.lr_policy not in POLICIES:
        wrong = f"lr_policy is {solver.lr_policy!r}; there are {', '.join(POLICIES)}"
    elif solver.lr_policy in ("step", "sigmoid") and solver.stepsize < 1:
        wrong = f"lr_policy {solver.lr_policy!r} needs a stepsize"
    elif solver.max_iter < 1:
        wrong = "max_iter is missing: how many iterations to train"
    elif not (solver.net or solver.train_net):
        wrong = "neither net nor train_net names the net's file"
    elif solver.regularization_type not in ("L1", "L2"):
        wrong = f"regularization_type is {solver.regularization_type!r}; there are L1 and L2"
    if wrong:
        raise UserFault(f"{solver.where}: {wrong}")


def net_paths(solver: Solver, folder: Path) -> tuple[Path, Path]:
    """Return the files of the nets to train and to test.

    Names are looked up in the submitted folder, and then beside the solver, without their folders:
    in Caffe they are relative to where it is started.

    Raises:
        UserFault: there is no such file.
    """
    train = _find(solver, solver.train_net or solver.net, folder)
    return train, _find(solver, solver.test_net, folder) if solver.test_net else train


def _find(solver: Solver, name: str, folder: Path) -> Path:
    for path in (folder / name, folder / Path(name).name):
        if path.is_file() and path.resolve().is_relative_to(folder.resolve()):
            return path
    raise UserFault(
        f"{solver.where}: there is no net {name!r} in the submitted folder",
        hint="paths are relative to the manifest's folder",
    )
