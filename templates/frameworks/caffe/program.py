"""A small Caffe: solver and net files become a model, an optimizer and data for the built-in loop.

The functions that the loop calls; docs/frameworks.md describes them. Like `prototxt` and `solver`
this module needs neither torch nor h5py before one of them is called, so that the preflight can
check the files.

Layers, solvers and formats are those of BVLC Caffe 1.0 (Jia et al., Caffe: Convolutional
Architecture for Fast Feature Embedding, 2014; src/caffe/proto/caffe.proto).
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlctl import contract
from dlctl.contract import Plan
from learner.errors import UserFault

from .prototxt import Message, read
from .solver import Solver, net_paths, read_solver

if TYPE_CHECKING:
    from torch import Tensor

    from .data import Samples
    from .net import CaffeNet


def check(plan: Plan, code: Path) -> None:
    """Read solver and nets.

    Raises:
        UserFault: one of the files is wrong.
    """
    for path in dict.fromkeys(net_paths(_solver(plan, code), code)):
        if not read(path).fields.keys() & {"layer", "layers"}:
            raise UserFault(f"{path.name} has no layer")


def planned(plan: Plan, code: Path) -> Plan:
    """Return the plan with what its solver file decides: how long to train, and in which batches.

    As in Caffe, each learner has the net's batch size.

    Raises:
        UserFault: a file is wrong, or its data is missing.
    """
    solver = _solver(plan, code)
    samples, each = _read(solver, code)[1]["TRAIN"]
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


def build(plan: Plan, code: Path) -> dict[str, Any]:
    """Return what a user's `build` returns."""
    from .optimizer import CaffeOptimizer

    solver = _solver(plan, code)
    net, data = _read(solver, code)
    return {
        "model": net,
        "optimizer": CaffeOptimizer(net.groups(), solver),
        "loss": net.loss,
        "train": data["TRAIN"][0],
        "validation": data["TEST"][0] if "TEST" in data else None,
        "metrics": net.metrics(),
    }


def take_weights(model: CaffeNet, path: Path) -> list[str]:
    """Begin with the blobs of a .caffemodel; return a sentence for each layer that has none.

    Raises:
        UserFault: the file is no .caffemodel, or a blob has another shape.
    """
    from .weights import read_blobs

    return model.take(read_blobs(path), path.name)


def export(plan: Plan, code: Path, model: CaffeNet, step: int, results: Path) -> Path:
    """Write the weights as .caffemodel, under the name that Caffe gives them; return the path."""
    path = results / f"{_solver(plan, code).model_name}_iter_{step}.caffemodel"
    contract.write_whole(path, model.caffemodel())
    return path


def _solver(plan: Plan, code: Path) -> Solver:
    return read_solver(code / str(plan.framework.job))


def _read(solver: Solver, folder: Path) -> tuple[CaffeNet, dict[str, tuple[Samples, int]]]:
    from .data import Augmented, dataset
    from .net import read_net

    by_layer: dict[int, tuple[Samples, int]] = {}

    def example(layer: Message, phase: str) -> Tensor:
        samples, _ = by_layer[id(layer)] = dataset(layer, folder, phase)
        return samples.example() if isinstance(samples, Augmented) else samples.tensors[0][:1]

    net = read_net(*net_paths(solver, folder), example)
    return net, {phase: by_layer[id(graph.data)] for phase, graph in net.graphs.items()}
