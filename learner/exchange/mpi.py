"""The exchange over MPI alone: every learner sums its part of each slice and sends it to all.

MPI only moves bytes: its reductions add in an order that depends on the placement of the ranks
(seen: block and cyclic placement of 4 ranks on 2 nodes differ in the last bits). Reduce-scatter and
allgather by point-to-point messages send 2 (n-1)/n of the payload each way, which is the minimum
(Patarasuk and Yuan, Bandwidth Optimal All-reduce Algorithms, 2009).
"""

from __future__ import annotations

import torch
from mpi4py import MPI

from learner.exchange.arithmetic import blocks, divide, part_of, sum_rows
from learner.exchange.base import Buffer
from learner.exchange.grouped import GroupedExchange
from learner.exchange.mpi_group import MpiGroup, as_bytes
from learner.exchange.pipeline import Pipeline, Protocol

SLICE_BYTES = 4 * 1024**2
"""One big call is four times slower than slices of this size (page faults on a temporary)."""
_TAGS = 8192
"""Tags of slices, which are their numbers modulo this; fewer are ever in flight."""


class MpiBuffer:
    """A Buffer whose parts travel over MPI, several slices at a time."""

    def __init__(self, comm: MPI.Intracomm, values: torch.Tensor) -> None:
        self.values = values
        self._comm = comm.Dup()  # keeps the messages of two buffers apart
        self._rank, self._size = comm.Get_rank(), comm.Get_size()
        self._pipeline = Pipeline()
        self._slices = 0
        self._free_rows: list[torch.Tensor] = []

    def begin(self, start: int, stop: int, divisor: int = 1) -> None:
        """Queue a part in slices, and send what can be sent."""
        step = max(1, SLICE_BYTES // self.values.element_size())
        for a, b in blocks(start, stop, step):
            self._pipeline.add(self._sum_slice(a, b, divisor, self._slices % _TAGS))
            self._slices += 1
        self._pipeline.progress()

    def progress(self) -> None:
        """Make progress with what is under way."""
        self._pipeline.progress()

    def wait(self) -> None:
        """Finish everything that was begun."""
        self._pipeline.wait()

    def free(self) -> None:
        """Drop the memory and the communicator."""
        self.values = self.values[:0]
        if not MPI.Is_finalized():
            self._comm.Free()

    def _sum_slice(self, start: int, stop: int, divisor: int, tag: int) -> Protocol:
        parts = [part_of(start, stop, rank, self._size) for rank in range(self._size)]
        mine = self.values[slice(*parts[self._rank])]
        others = [rank for rank in range(self._size) if rank != self._rank]
        rows = self._take_rows(len(mine))
        receive = [self._comm.Irecv(as_bytes(rows[r]), r, 2 * tag) for r in others]
        send = [self._comm.Isend(self._bytes(parts[r]), r, 2 * tag) for r in others]
        yield lambda: MPI.Request.Testall(receive)
        _sum_into(mine, [mine if r == self._rank else rows[r] for r in range(self._size)], divisor)
        self._give_rows(rows)
        results = [self._comm.Isend(as_bytes(mine), r, 2 * tag + 1) for r in others]
        yield lambda: MPI.Request.Testall(send)  # only now may their memory be overwritten
        results += [self._comm.Irecv(self._bytes(parts[r]), r, 2 * tag + 1) for r in others]
        yield lambda: MPI.Request.Testall(results)

    def _bytes(self, part: tuple[int, int]) -> object:
        return as_bytes(self.values[slice(*part)])

    def _take_rows(self, count: int) -> list[torch.Tensor]:
        """Return memory for one row of each rank."""
        needed = self._size * count
        kept = self._free_rows.pop() if self._free_rows else self.values.new_empty(0)
        whole = kept if len(kept) >= needed else self.values.new_empty(needed)
        return list(whole[:needed].view(self._size, count).unbind())

    def _give_rows(self, rows: list[torch.Tensor]) -> None:
        whole = rows[0]._base
        if whole is not None:
            self._free_rows.append(whole)


def _sum_into(target: torch.Tensor, rows: list[torch.Tensor], divisor: int) -> None:
    """Write the sum of the rows, in their order, divided, into the target (one of them)."""
    for a, b in blocks(0, len(target)):
        total = sum_rows([row[a:b] for row in rows])
        divide(total, divisor)
        target[a:b].copy_(total)


class MpiExchange(GroupedExchange[MpiGroup]):
    """An Exchange over an MPI communicator."""

    name = "mpi"

    def buffer(self, count: int, dtype: torch.dtype, device: torch.device | None = None) -> Buffer:
        """Return a buffer of `count` zeros; for a GPU see the exchange `torch`."""
        self._refuse_gpus(device)
        return MpiBuffer(self.group.comm, torch.zeros(count, dtype=dtype))
