"""One process of a method to serve parameters: `… WAY SOCKET` (see psrv.py)."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.turns import Place

ELEMENTS = 25_557_032
LR = 2.0**-10
"""A power of two, like the gradient: the weights are exact, whatever the order of updates."""
GRADIENT = 2.0**-3
SLICE = 1 << 20
_MEMORY = "OMPI_MCA_btl_sm_backing_directory"
"""The variable that names a folder in shared memory, which is deleted at the end."""


class Way(ABC):
    """A method to update the weights. The gradient is the same each time."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.gradient, self.weights = self.zeros().fill_(GRADIENT), self.zeros()
        self.updates = 0
        self.weights.zero_()  # fault in its pages before anything is measured, and load all code
        self.load()
        self._anonymous = _anonymous_bytes()
        self.join()

    def zeros(self) -> torch.Tensor:
        """Return memory for gradients or weights."""
        return torch.zeros(ELEMENTS)

    def load(self) -> None:  # noqa: B027 - some need nothing more
        """Import what is needed."""

    @abstractmethod
    def join(self) -> None:
        """Connect to the other processes."""

    def run(self, updates: int) -> None:
        """Update `updates` times."""
        self.updates += updates
        for _ in range(updates):
            self.update()

    @abstractmethod
    def update(self) -> None:
        """Push and pull once."""

    def learners(self) -> int:
        """Return the number of learners that push."""
        return self.place.size

    def check(self, _: Any) -> None:
        """Raise unless the weights contain all updates."""
        self.pull()
        expected = -LR * GRADIENT * self.updates * self.learners()
        if not self.weights.eq(expected).all():
            raise RuntimeError(f"weights from {self.weights.min()} to {self.weights.max()}, "
                               f"not {expected}")  # fmt: skip

    def memory(self, _: Any) -> float:
        """Return the memory taken beyond gradient and weights, in copies of the parameters.

        The first process also counts the files in shared memory.
        """
        found = _anonymous_bytes() - self._anonymous
        if self.place.number == 0:
            found += sum(512 * f.stat().st_blocks for f in Path(os.environ[_MEMORY]).iterdir())
        return found / (4 * ELEMENTS)

    def pull(self) -> None:  # noqa: B027 - some have them already
        """Pull the weights once more, at the end."""

    def leave(self) -> None:  # noqa: B027 - some have nothing to release
        """End."""


def _anonymous_bytes() -> int:
    """Return how much anonymous memory this process uses."""
    status = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in status if line.startswith("RssAnon:")]
    return 1024 * int(line.split()[1])


class FloorTorch(Way):
    """The same arithmetic on private memory, with torch."""

    def join(self) -> None:
        """Cut everything into blocks."""
        from psrv.shard.format import BLOCK_BYTES

        step = BLOCK_BYTES // 4
        aside = torch.empty(step)
        self._server = self.zeros()
        self._blocks = [
            (server, gradient, weights, aside[: len(server)])
            for server, gradient, weights in zip(
                self._server.split(step), self.gradient.split(step), self.weights.split(step),
                strict=True,
            )
        ]  # fmt: skip

    def update(self) -> None:
        """For each block: copy it aside, step, copy it out."""
        for server, gradient, weights, aside in self._blocks:
            aside.copy_(server)
            server.add_(gradient, alpha=-LR)
            weights.copy_(server)

    def learners(self) -> int:
        """Return 1: nobody else works on these weights."""
        return 1


class Floor(FloorTorch):
    """The same arithmetic on private memory in one pass, as in ours."""

    def join(self) -> None:
        """Compile the C functions: each learner does, as the others may be asked sooner."""
        from psrv.solvers import native
        from psrv.solvers.solver import Downpour

        super().join()
        folder = Path(os.environ[_MEMORY])
        native.build(folder, Downpour())
        self._kept = torch.zeros(1, dtype=torch.int64)
        self._library = native.load(folder / native.LIBRARY)

    def run(self, updates: int) -> None:
        """Update `updates` times."""
        if (library := self._library) is None:
            raise RuntimeError("no compiler: there is no floor")
        kept = self._kept.data_ptr()
        for _ in range(updates):
            for server, gradient, weights, aside in self._blocks:
                library.dlctl_step(
                    server.data_ptr(), 0, 0, gradient.data_ptr(), weights.data_ptr(),
                    aside.data_ptr(), 0, kept, len(server), 1, LR, 0.0, 1,
                )  # fmt: skip
        self.updates += updates


class Ours(Way):
    """The parameter server of psrv, on one shard."""

    def load(self) -> None:
        """Import psrv."""
        import psrv.client  # noqa: F401

    def join(self) -> None:
        """Create the shard, and map it."""
        from dlctl.contract import Parameters
        from psrv.client import join
        from psrv.push.waiting import WaitPolicy
        from psrv.shard.format import PRIMARY, create_shard
        from psrv.solvers import native
        from psrv.solvers.partition import ShardSet, layout_of
        from psrv.solvers.solver import Downpour

        parameters, solver = Parameters(ELEMENTS, "float32", 1, "resnet50"), Downpour()
        folder = Path(os.environ[_MEMORY])
        if self.place.number == 0:
            native.build(folder, solver)
            create_shard(folder / "shard-0", layout_of(parameters, 1, 0, solver, PRIMARY), 1)
        self._client = join(ShardSet(folder, parameters, 1, 1), solver, WaitPolicy(60))

    def update(self) -> None:
        """Push and pull."""
        self._client.push_pull(self.gradient, self.weights, LR)

    def pull(self) -> None:
        """Pull."""
        self._client.pull(self.weights)

    def leave(self) -> None:
        """Release the slot."""
        self._client.leave()


class Served(Way):
    """A method whose first process serves."""

    @property
    def serves(self) -> bool:
        """Return whether this is the server."""
        return self.place.number == 0

    def learners(self) -> int:
        """Return the number of learners that push."""
        return self.place.size - 1

    def check(self, argument: Any) -> None:
        """Check the server's weights."""
        if self.serves:
            super().check(argument)


class TwoSided(Served):
    """MPI messages in slices: the gradient to the server, the weights back."""

    def join(self) -> None:
        """Start MPI."""
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = MPI.COMM_WORLD
        self._slices = [part.numpy() for part in self.weights.split(SLICE)]
        self._sent = [part.numpy() for part in self.gradient.split(SLICE)]

    @property
    def serves(self) -> bool:
        """Return whether this is MPI's rank 0, whatever its number in the set."""
        return bool(self._comm.rank == 0)

    def run(self, updates: int) -> None:
        """Serve all learners' updates, or update."""
        if not self.serves:
            return super().run(updates)
        self.updates += updates
        status, received = self._mpi.Status(), torch.empty(SLICE)
        parts = self.weights.split(SLICE)
        for _ in range(updates * self.learners() * len(parts)):
            self._comm.Recv(received.numpy(), self._mpi.ANY_SOURCE, self._mpi.ANY_TAG, status)
            part = parts[status.tag]
            part.add_(received[: len(part)], alpha=-LR)
            self._comm.Send(part.numpy(), status.source, status.tag)
        return None

    def update(self) -> None:
        """Send each slice, and receive it."""
        for number, (sent, taken) in enumerate(zip(self._sent, self._slices, strict=True)):
            self._comm.Sendrecv(sent, 0, number, taken, 0, number)


_served = torch.zeros(0)


def _serve(gradient: torch.Tensor) -> torch.Tensor:
    """Take a step on the server (called over the network)."""
    return _served.add_(gradient, alpha=-LR)


class TorchRpc(Served):
    """torch.distributed.rpc: a function on the server."""

    def join(self) -> None:
        """Start RPC: the processes find each other through a file."""
        import torch.distributed.rpc as rpc

        global _served
        _served = torch.zeros(ELEMENTS)
        self._rpc = rpc
        options = rpc.TensorPipeRpcBackendOptions(
            init_method=f"file://{self.place.folder}/rpc", num_worker_threads=1
        )
        name = "server" if self.serves else f"learner{self.place.number}"
        rpc.init_rpc(
            name, rank=self.place.number, world_size=self.place.size, rpc_backend_options=options
        )

    def run(self, updates: int) -> None:
        """Update; the server's threads serve by themselves."""
        if self.serves:
            self.updates += updates
        else:
            super().run(updates)

    def pull(self) -> None:
        """Take the server's weights."""
        self.weights = _served

    def update(self) -> None:
        """Call the server."""
        self.weights.copy_(self._rpc.rpc_sync("server", _serve, args=(self.gradient,)))

    def leave(self) -> None:
        """Wait for the others and end."""
        self._rpc.shutdown()


WAYS: dict[str, Callable[[Place], Way]] = {
    "ours": Ours, "floor": Floor, "floor_torch": FloorTorch, "mpi_two_sided": TwoSided,
    "torch_rpc": TorchRpc,
}  # fmt: skip
"""All methods except those with Ray, which have a module of their own."""


def main() -> None:
    """Update with the method that the arguments name, on each order."""
    name, path = sys.argv[1:]
    torch.set_num_threads(1)
    if name.startswith("ray"):
        from benchmarks.psrv_ray import Ray, RayInPlace

        WAYS.update(ray=Ray, ray_in_place=RayInPlace)
    way = WAYS[name](place := Place(path))
    place.obey({"update": way.run, "check": way.check, "memory": way.memory})
    way.leave()


if __name__ == "__main__":
    main()
