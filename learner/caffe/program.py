"""A solver file as the built-in loop needs it: what a user's `build` returns, and the plan."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from dlctl.contract import Plan
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


def planned(plan: Plan, folder: Path) -> Plan:
    """Return the plan with what its solver file decides: how long to train, and in which batches.

    As in Caffe, each learner has the net's batch size.

    Raises:
        UserFault: a file is wrong, or its data is missing.
    """
    solver = read_solver(folder / str(plan.framework.job))
    _, data = _read(solver, folder)
    samples, each = data[TRAIN]
    batch = each * plan.resources.learners * solver.iter_size
    steps = max(1, math.ceil(len(samples) / batch))
    training = replace(
        plan.training, epochs=math.ceil(solver.max_iter / steps), steps=solver.max_iter,
        batch_size=batch, validate_every_epochs=max(1, round(solver.test_interval / steps)),
        log_every_steps=solver.display or 10,
    )  # fmt: skip
    checkpoint = plan.checkpoint
    if solver.snapshot and checkpoint.every_epochs == 1:  # the manifest does not say when
        checkpoint = replace(checkpoint, every_epochs=None, every_steps=solver.snapshot)
    return replace(plan, training=training, checkpoint=checkpoint)


def _read(solver: Solver, folder: Path) -> tuple[CaffeNet, dict[str, tuple[Samples, int]]]:
    by_layer: dict[int, tuple[Samples, int]] = {}

    def example(layer: Message, phase: str) -> Tensor:
        samples, _ = by_layer[id(layer)] = dataset(layer, folder, phase)
        return samples.example() if isinstance(samples, Augmented) else samples.tensors[0][:1]

    net = read_net(*net_paths(solver, folder), example)
    return net, {phase: by_layer[id(graph.data)] for phase, graph in net.graphs.items()}
