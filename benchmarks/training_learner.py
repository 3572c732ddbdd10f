"""One learner of benchmarks.training: one method to train, alone in its process.

python -m benchmarks.training_learner WAY MODEL OPTIMIZER BUCKET_MB SOCKET; turns.py starts it.

A method loads only what it needs: the plain program has neither MPI nor gloo.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from benchmarks.turns import Place

BATCH = 64
"""Samples per learner and step."""
BATCHES = 8
"""A learner's random, fixed batches, used in turn."""
LOG_EVERY_STEPS = 10
"""The built-in loop's default."""
SLICE = 1 << 20
"""Elements of a slice of 4 MB."""
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


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


MODELS: dict[str, Callable[[], nn.Module]] = {"mlp10m": mlp10m, "lenet": lenet}
OPTIMIZERS: dict[str, MakeOptimizer] = {"sgd": sgd, "adam": adam}


class Training:
    """The plain program: a model and its optimizer; a subclass is one method to exchange."""

    def __init__(self, place: Place, given: argparse.Namespace) -> None:
        self.place = place
        self.bucket_mb: int = given.bucket_mb
        self.join()
        torch.manual_seed(1)  # the same weights for all
        self.model = self.wrap(MODELS[given.model]())
        self.optimizer = self.wrap_optimizer(OPTIMIZERS[given.optimizer](self.model.parameters()))
        random = torch.Generator().manual_seed(place.number)
        self._samples = torch.randn(BATCHES, BATCH, 1, 28, 28, generator=random)
        self._labels = torch.randint(10, (BATCHES, BATCH), generator=random)
        self._at = 0

    def join(self) -> None:
        """Find the other learners."""

    def leave(self) -> None:
        """Undo `join`."""

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return what stands for the model in the loop."""
        return model

    def wrap_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Return what stands for the optimizer in the loop."""
        return optimizer

    def clear(self) -> None:
        """Drop the gradients of the previous step."""
        self.optimizer.zero_grad()

    def exchange(self) -> None:
        """Average the gradients, if neither backward nor the optimizer does."""

    def steps(self, count: int) -> None:
        """Take `count` steps of the usual loop."""
        for _ in range(count):
            self._at = (self._at + 1) % BATCHES
            self.clear()
            output = self.model(self._samples[self._at])
            functional.cross_entropy(output, self._labels[self._at]).backward()
            self.exchange()
            self.optimizer.step()

    def orders(self) -> dict[str, Callable[[Any], object]]:
        """Return the orders that this learner obeys."""
        return {"steps": self.steps, "write_weights": self.write_weights}

    def write_weights(self, name: str) -> None:
        """Write the parameters as float32 to a file NAME.NUMBER, without a copy.

        Freeing a large copy would change what malloc does from then on.
        """
        with (self.place.folder / f"{name}.{self.place.number}").open("wb") as file:
            for parameter in self.model.parameters():
                parameter.detach().numpy().tofile(file)


class PlainMalloc(Training):
    """The plain program with the memory allocator set as `ddl.init` sets it."""

    def join(self) -> None:
        """Join nobody."""
        from learner.system.memory import keep_freed_memory

        keep_freed_memory()


class Ours(Training):
    """`ddl.DistributedOptimizer`."""

    def join(self) -> None:
        """Find the others over MPI."""
        from learner import ddl

        ddl.init()

    def leave(self) -> None:
        """Free the shared memory."""
        from learner import ddl

        ddl.shutdown()

    def wrap_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Let ddl average and step."""
        from learner import ddl

        return ddl.DistributedOptimizer(optimizer)

    def orders(self) -> dict[str, Callable[[Any], object]]:
        """Return also the orders that measure the cost of metrics."""
        return {**super().orders(), "tell": self.tell, "read_clock": self.read_clock}

    def tell(self, arguments: list[float]) -> None:
        """Do what the built-in loop does to report a number of steps of a given duration.

        It reads the clock around every gradient's arrival, around the end of the exchange, around
        both waits for the node in a step, and around the wait for data.
        """
        from learner.job.metrics import MetricsFile, Progress, StepTimes

        count, step_s = arguments
        step, spent_s = 0, 0.0
        folder = self.place.folder
        progress = Progress(folder / f"progress.{self.place.number}", lambda: step * step_s)
        file = MetricsFile(folder / f"metrics.{self.place.number}")
        times = StepTimes()
        values = {"loss": 2.3, "accuracy": 0.5}
        clocks = range(4 + sum(1 for _ in self.model.parameters()))
        for step in range(1, int(count) + 1):
            for _ in clocks:
                started = time.perf_counter()
                spent_s += time.perf_counter() - started
            times.add(BATCH, exchange_s=spent_s, data_wait_s=0.0, checkpoint_stall_s=0.0)
            if step % LOG_EVERY_STEPS:
                progress.update(step, 1, values)
            else:
                rates = {**values, "learning_rate": 0.01, **times.read()}
                progress.update(step, 1, rates)
                file.append(step, 1, rates)

    def read_clock(self, arguments: list[float]) -> None:
        """Read the clock once for each step."""
        for _ in range(int(arguments[0])):
            time.perf_counter()


class Gloo(Training):
    """DistributedDataParallel over gloo with its defaults."""

    def join(self) -> None:
        """Find the others through a file, and connect over the loopback device."""
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        store = dist.FileStore(str(self.place.folder / "store"), self.place.size)
        dist.init_process_group(
            "gloo", store=store, rank=self.place.number, world_size=self.place.size
        )

    def leave(self) -> None:
        """End torch.distributed."""
        dist.destroy_process_group()

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the wrapped model."""
        return DistributedDataParallel(model)


class GlooTuned(Gloo):
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


class GlooTunedMalloc(GlooTuned):
    """The same with the memory allocator set as `ddl.init` sets it."""

    def join(self) -> None:
        """Set malloc first."""
        from learner.system.memory import keep_freed_memory

        keep_freed_memory()
        super().join()


class Chunked(Training):
    """MPI's allreduce in slices of 4 MB, of gradients that are views of one flat buffer."""

    def join(self) -> None:
        """Start MPI."""
        from mpi4py import MPI

        self._comm, self._in_place = MPI.COMM_WORLD, MPI.IN_PLACE

    def wrap(self, model: nn.Module) -> nn.Module:
        """Give the model gradients that are views of one buffer."""
        parameters = list(model.parameters())
        self._flat = torch.zeros(sum(p.numel() for p in parameters))
        start = 0
        for parameter in parameters:
            part = self._flat[start : start + parameter.numel()]
            parameter.grad = part.view(parameter.shape)
            start += parameter.numel()
        return model

    def clear(self) -> None:
        """Zero the gradients, but keep the views."""
        self._flat.zero_()

    def exchange(self) -> None:
        """Average the whole buffer after backward."""
        for part in self._flat.split(SLICE):
            self._comm.Allreduce(self._in_place, part.numpy())
        self._flat.div_(self.place.size)


WAYS: dict[str, type[Training]] = {
    "ours": Ours,
    "none": Training,
    "none_malloc": PlainMalloc,
    "ddp_gloo": Gloo,
    "ddp_gloo_tuned": GlooTuned,
    "ddp_gloo_tuned_malloc": GlooTunedMalloc,
    "mpi_chunked": Chunked,
}


def main() -> None:
    """Train with the method that the arguments name, on each order."""
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("optimizer", choices=OPTIMIZERS)
    parser.add_argument("bucket_mb", type=int)
    parser.add_argument("socket")
    given = parser.parse_args()
    torch.set_num_threads(1)
    place = Place(given.socket)
    training = WAYS[given.way](place, given)
    place.obey(training.orders())
    training.leave()


if __name__ == "__main__":
    main()
