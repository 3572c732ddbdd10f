"""A solver file as the built-in loop needs it: what a user's `build` returns, and its settings."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from learner.caffe.data import Augmented, Samples, dataset
from learner.caffe.net import TEST, TRAIN, CaffeNet, read_net
from learner.caffe.optimizer import CaffeOptimizer
from learner.caffe.prototxt import Message
from learner.caffe.solver import Solver, net_paths, read_solver

SUFFIX = ".prototxt"


def builder(path: Path, folder: Path) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that does for a solver file what a user's `build` does.

    Args:
        path: The solver.
        folder: The submitted folder, in which nets and data are looked up.
    """

    def build(arguments: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - weights come later
        solver = read_solver(path)
        net, data = _read(solver, folder)
        return {
            "model": net,
            "optimizer": CaffeOptimizer(net.groups(), solver),
            "loss": net.loss,
            "train": data[TRAIN][0],
            "validation": data[TEST][0] if TEST in data else None,
            "metrics": net.metrics(),
        }

    return build


@dataclass(frozen=True)
class Settings:
    """What the solver decides in place of the manifest."""

    epochs: int
    steps: int
    batch_size: int
    """Over all learners together: as in Caffe, each has the net's batch size."""
    validate_every_epochs: int
    log_every_steps: int
    snapshot_steps: int


def settings(path: Path, folder: Path, learners: int) -> Settings:
    """Return how long and in which batches a solver's file trains.

    Raises:
        UserFault: a file is wrong, or its data is missing.
    """
    solver = read_solver(path)
    _, data = _read(solver, folder)
    samples, each = data[TRAIN]
    batch = each * learners * solver.iter_size
    steps = max(1, math.ceil(len(samples) / batch))
    return Settings(
        epochs=math.ceil(solver.max_iter / steps),
        steps=solver.max_iter,
        batch_size=batch,
        validate_every_epochs=max(1, round(solver.test_interval / steps)),
        log_every_steps=solver.display or 10,
        snapshot_steps=solver.snapshot,
    )


def _read(solver: Solver, folder: Path) -> tuple[CaffeNet, dict[str, tuple[Samples, int]]]:
    known: dict[str, tuple[Samples, int]] = {}
    by_layer: dict[int, tuple[Samples, int]] = {}

    def example(layer: Message, phase: str) -> Tensor:
        samples, _ = by_layer[id(layer)] = dataset(layer, folder, phase)
        return samples.example() if isinstance(samples, Augmented) else samples.tensors[0][:1]

    net = read_net(*net_paths(solver, folder), example)
    for phase, graph in net.graphs.items():
        known[phase] = by_layer[id(graph.data)]
    return net, known


__all__ = ["SUFFIX", "Settings", "builder", "settings"]
