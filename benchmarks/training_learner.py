"""One learner of benchmarks.training, which says what is measured; started by learners.py."""

from __future__ import annotations

import argparse
import copy
import math
import time
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from benchmarks.exchange_learner import reduce_in_slices
from benchmarks.rounds import Candidate, measure, one_thread, start_gloo, write

BATCH = 64
"""Samples of a learner's step."""
BATCHES = 8
"""Batches that a learner has: random, fixed, used in turn."""
LEAST_S = 0.5
"""A run has as many steps as take the fastest candidate this long."""
STEPS_COMPARED = 5
RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE = 1e-4, 1e-6


def mlp10m() -> nn.Module:
    """Return a multilayer perceptron of 10,020,874 parameters for 28 x 28 pixels."""
    widths = (784, 2048, 2048, 2048)
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(widths[-1], 10))
    assert sum(p.numel() for p in model.parameters()) == 10_020_874
    return model


def lenet() -> nn.Module:
    """Return LeNet as Caffe's example has it for 28 x 28 pixels: 431,080 parameters."""
    model = nn.Sequential(
        nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10),
    )  # fmt: skip
    assert sum(p.numel() for p in model.parameters()) == 431_080
    return model


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return SGD with momentum."""
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return Adam, whose state is twice SGD's and whose step costs more."""
    return torch.optim.Adam(parameters, lr=1e-4)


MODELS = {"mlp10m": mlp10m, "lenet": lenet}
BUCKET_MB = {"mlp10m": 4, "lenet": 100}
"""The bucket_cap_mb that made DDP fastest, of 1, 4, 25 and 100."""
OPTIMIZERS = {"sgd": sgd, "adam": adam}


class Training:
    """A model, what steps it, and the learner's own batches; a subclass is one way to exchange."""

    def __init__(
        self,
        comm: MPI.Intracomm,
        model: nn.Module,
        make_optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
        bucket_mb: int,
    ) -> None:
        self.comm = comm
        self.bucket_mb = bucket_mb
        self.model = self.wrap(model)
        self.optimizer = self.wrap_optimizer(make_optimizer(self.model.parameters()))
        random = torch.Generator().manual_seed(comm.Get_rank())
        self._samples = torch.randn(BATCHES, BATCH, 1, 28, 28, generator=random)
        self._labels = torch.randint(10, (BATCHES, BATCH), generator=random)
        self._at = 0

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return what stands for the model in the loop."""
        return model

    def wrap_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Return what stands for the optimizer in the loop."""
        return optimizer

    def clear(self) -> None:
        """Drop the gradients of the step before."""
        self.optimizer.zero_grad()

    def exchange(self) -> None:
        """Average the gradients, where neither backward nor the optimizer does it."""

    def steps(self, count: int) -> None:
        """Take so many steps of the usual loop."""
        for _ in range(count):
            self._at = (self._at + 1) % BATCHES
            self.clear()
            output = self.model(self._samples[self._at])
            functional.cross_entropy(output, self._labels[self._at]).backward()
            self.exchange()
            self.optimizer.step()

    def weights(self) -> list[torch.Tensor]:
        """Return the parameters once every learner has taken its step."""
        self.comm.Barrier()
        return [parameter.detach() for parameter in self.model.parameters()]


class Ours(Training):
    """`ddl.DistributedOptimizer`."""

    def wrap_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Let ddl average and step."""
        from learner import ddl

        return ddl.DistributedOptimizer(optimizer)


class Gloo(Training):
    """DistributedDataParallel over gloo with its defaults."""

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the wrapped model."""
        return DistributedDataParallel(model)


class GlooTuned(Training):
    """DistributedDataParallel over gloo as its documentation advises for speed."""

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the wrapped model."""
        return DistributedDataParallel(
            model,
            gradient_as_bucket_view=True,
            static_graph=True,
            broadcast_buffers=False,
            bucket_cap_mb=self.bucket_mb,
        )


class Chunked(Training):
    """MPI's allreduce in slices of 4 MB, of gradients that are views of one flat buffer."""

    def wrap(self, model: nn.Module) -> nn.Module:
        """Give the model its gradients."""
        parameters = list(model.parameters())
        self._flat = torch.zeros(sum(p.numel() for p in parameters))
        start = 0
        for parameter in parameters:
            part = self._flat[start : start + parameter.numel()]
            parameter.grad = part.view(parameter.shape)
            start += parameter.numel()
        return model

    def clear(self) -> None:
        """Keep the views."""
        self._flat.zero_()

    def exchange(self) -> None:
        """Average the whole buffer after backward."""
        reduce_in_slices(self.comm, self._flat)
        self._flat.div_(self.comm.Get_size())


WAYS = {
    "ours": Ours,
    "floor": Training,
    "ddp_gloo": Gloo,
    "ddp_gloo_tuned": GlooTuned,
    "mpi_chunked": Chunked,
}


def compare(trainings: dict[str, Training]) -> None:
    """Take some steps in every way; raise where the weights are not those of DDP."""
    for training in trainings.values():
        training.steps(STEPS_COMPARED)
    expected = trainings["ddp_gloo"].weights()
    for name, training in trainings.items():
        if name == "floor":
            continue
        for number, (is_, should) in enumerate(zip(training.weights(), expected, strict=True)):
            torch.testing.assert_close(
                is_, should, rtol=RELATIVE_TOLERANCE, atol=ABSOLUTE_TOLERANCE,
                msg=lambda text, at=(name, number): f"{at[0]}, parameter {at[1]}: {text}",
            )  # fmt: skip


def count_steps(comm: MPI.Intracomm, training: Training) -> int:
    """Return how many steps of the loop take LEAST_S without communication."""
    training.steps(2)
    start = time.perf_counter()
    training.steps(5)
    step_s: float = comm.allreduce(time.perf_counter() - start, MPI.MIN) / 5
    return math.ceil(LEAST_S / step_s)


def run(comm: MPI.Intracomm, given: argparse.Namespace) -> None:
    """Measure every way and write the rates, in samples a second over all learners."""
    torch.manual_seed(1)
    start = MODELS[given.model]()
    optimizer = OPTIMIZERS[given.optimizer]
    bucket_mb = BUCKET_MB[given.model]
    trainings = {
        name: way(comm, copy.deepcopy(start), optimizer, bucket_mb) for name, way in WAYS.items()
    }
    compare(trainings)
    count = count_steps(comm, trainings["floor"])
    candidates = [
        Candidate(name, lambda training=training: training.steps(count))  # type: ignore[misc]
        for name, training in trainings.items()
    ]
    medians_s = measure(comm, candidates, given.runs, warm_up=1)
    samples = count * BATCH * comm.Get_size()
    rates = {name: samples / elapsed_s for name, elapsed_s in medians_s.items()}
    write(comm, given.file, what=given.what, medians=rates, runs=given.runs)


def main() -> None:
    """Take part in the measurement that the arguments name."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("optimizer", choices=OPTIMIZERS)
    parser.add_argument("what")
    parser.add_argument("runs", type=int)
    parser.add_argument("file")
    given = parser.parse_args()
    one_thread()
    comm = MPI.COMM_WORLD
    start_gloo(comm)
    from learner import ddl

    ddl.init()
    try:
        run(comm, given)
    finally:
        dist.destroy_process_group()
    ddl.shutdown()


if __name__ == "__main__":
    main()
