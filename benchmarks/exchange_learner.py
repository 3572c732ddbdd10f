"""One learner of benchmarks.exchange (see there for what is measured); learners.py starts it.

python -m benchmarks.exchange_learner in_place|copied KEY RUNS WARM_UP FILE
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import numpy
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from benchmarks.report import Rounds
from benchmarks.rounds import Candidate, measure, one_thread, start_gloo, write

SLICE = 1 << 20
"""Elements of a slice of 4 MB."""
RARE = 3
"""How often to run a candidate that takes seconds."""
TENSORS, ELEMENTS = 161, 25_557_032


def resnet50_shapes() -> list[tuple[int, ...]]:
    """Return the shapes of the parameters of torchvision's ResNet-50, in its order."""
    shapes = [*_convolution(64, 3, 7)]
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes += _convolution(width, inputs, 1)
            shapes += _convolution(width, width, 3)
            shapes += _convolution(4 * width, width, 1)
            if block == 0:  # the shortcut around the block
                shapes += _convolution(4 * width, inputs, 1)
            inputs = 4 * width
    shapes += [(1000, inputs), (1000,)]
    assert len(shapes) == TENSORS
    assert sum(torch.Size(shape).numel() for shape in shapes) == ELEMENTS
    return shapes


def _convolution(outputs: int, inputs: int, kernel: int) -> Iterator[tuple[int, ...]]:
    """Yield the shapes of a convolution without bias and its batch norm."""
    yield (outputs, inputs, kernel, kernel)
    yield (outputs,)
    yield (outputs,)


class Payload:
    """One learner's gradients: filled before each run, checked after it."""

    def __init__(self, comm: MPI.Intracomm, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors
        self._mine = float(comm.Get_rank() + 1)
        self._sum = float(sum(range(1, comm.Get_size() + 1)))

    def fill(self) -> None:
        """Write every gradient, as a backward pass does."""
        for tensor in self.tensors:
            tensor.fill_(self._mine)

    def check(self) -> None:
        """Raise if the first or last element of a tensor is not the sum."""
        for tensor in self.tensors:
            flat = tensor.view(-1)
            if float(flat[0]) != self._sum or float(flat[-1]) != self._sum:
                raise RuntimeError(f"a sum is {float(flat[0])}, {float(flat[-1])}, not {self._sum}")

    def candidate(self, name: str, run: Callable[[], None], max_runs: int = 10**9) -> Candidate:
        """Return a candidate that reduces this payload in place."""
        return Candidate(name, run, self.fill, self.check, max_runs)


def in_place(comm: MPI.Intracomm) -> list[Candidate]:
    """Return the methods that reduce gradients in place."""
    shapes = resnet50_shapes()
    flat, views = _flat(shapes)
    private = Payload(comm, [flat])

    def per_tensor() -> None:
        for view in views:
            dist.all_reduce(view)

    return [
        _ours_in_place(comm, shapes),
        # The payload's own floor: read and write every element once, in each learner's memory.
        Candidate("floor", lambda: _discard(flat.add_(1.0)), private.fill),
        private.candidate("gloo", lambda: _discard(dist.all_reduce(flat))),
        private.candidate("gloo_per_tensor", per_tensor, RARE),
        private.candidate("mpi", lambda: comm.Allreduce(MPI.IN_PLACE, flat.numpy())),
        private.candidate("mpi_chunked", lambda: reduce_in_slices(comm, flat)),
    ]


def copied(comm: MPI.Intracomm) -> list[Candidate]:
    """Return the methods that reduce gradients anywhere in private memory."""
    private = Payload(comm, [torch.empty(shape) for shape in resnet50_shapes()])
    room, _ = _flat(resnet50_shapes())

    def gloo() -> None:
        flat = _flatten_dense_tensors(private.tensors)
        dist.all_reduce(flat)
        unpack(flat)

    def mpi() -> None:
        flat = _flatten_dense_tensors(private.tensors)
        reduce_in_slices(comm, flat)
        unpack(flat)

    def unpack(flat: torch.Tensor) -> None:
        for into, part in zip(
            private.tensors, _unflatten_dense_tensors(flat, private.tensors), strict=True
        ):
            into.copy_(part)

    def floor() -> None:
        torch.cat([tensor.view(-1) for tensor in private.tensors], out=room)

    return [
        _ours_copied(private),
        Candidate("floor", floor, private.fill),
        private.candidate("gloo_packed", gloo),
        private.candidate("mpi_packed", mpi),
    ]


def _ours_in_place(comm: MPI.Intracomm, shapes: list[tuple[int, ...]]) -> Candidate:
    from learner import ddl

    payload = Payload(comm, ddl.empty_n(shapes))
    return payload.candidate("ours", lambda: _discard(ddl.allreduce_n_(payload.tensors)))


def _ours_copied(private: Payload) -> Candidate:
    from learner import ddl

    reduced = Payload(MPI.COMM_WORLD, [])

    def run() -> None:
        reduced.tensors = list(ddl.allreduce_n(private.tensors))

    return Candidate("ours", run, private.fill, reduced.check)


def _flat(shapes: list[tuple[int, ...]]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return one private buffer, and a view of it for each shape."""
    sizes = [torch.Size(shape).numel() for shape in shapes]
    # numpy requests huge pages, which halve the time of plain MPI.
    flat = torch.from_numpy(numpy.zeros(sum(sizes), numpy.float32))
    return flat, [v.view(s) for v, s in zip(flat.split(sizes), shapes, strict=True)]


def reduce_in_slices(comm: MPI.Intracomm, flat: torch.Tensor) -> None:
    """Sum a buffer in place with MPI's allreduce, in slices of 4 MB."""
    for part in flat.split(SLICE):
        comm.Allreduce(MPI.IN_PLACE, part.numpy())


def _discard(_: object) -> None:
    """Turn an expression into a statement."""


def main() -> None:
    """Take part in the measurement named by the arguments."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["in_place", "copied"])
    parser.add_argument("what")
    parser.add_argument("runs", type=int)
    parser.add_argument("warm_up", type=int)
    parser.add_argument("file")
    given = parser.parse_args()
    one_thread()
    comm = MPI.COMM_WORLD
    start_gloo(comm)
    from learner import ddl

    ddl.init()
    try:
        candidates = (in_place if given.kind == "in_place" else copied)(comm)
        seconds = measure(comm, candidates, Rounds(given.runs, given.warm_up))
        write(comm, given.file, what=given.what, medians=seconds, runs=given.runs)
    finally:
        dist.destroy_process_group()
    ddl.shutdown()


if __name__ == "__main__":
    main()
