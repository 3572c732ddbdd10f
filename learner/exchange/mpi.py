"""The group and the exchange of an MPI world. The import starts MPI: only for several learners.

In the exchange every learner sums its part of each slice and sends it to all. MPI only moves bytes:
its reductions add in an order that depends on the placement of the ranks (seen: block and cyclic
placement of 4 ranks on 2 nodes differ in the last bits). Reduce-scatter and allgather by
point-to-point messages send 2 (n-1)/n of the payload each way, which is the minimum (Patarasuk and
Yuan, Bandwidth Optimal All-reduce Algorithms, 2009).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from learner.errors import UserFault
from learner.exchange.arithmetic import blocks, divide, part_of, sum_rows, wide_dtype
from learner.exchange.base import Buffer, GroupedExchange
from learner.exchange.pipeline import Pipeline, Protocol
from learner.exchange.topology import make_topology


def _yield_when_crowded() -> None:
    """Make waiting ranks yield if there are more of them than processors.

    Otherwise Open MPI spins: 18.6 s instead of 1.7 s for 4 ranks on 2 processors.
    """
    local_size = os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") or os.environ.get("LOCAL_WORLD_SIZE")
    if local_size and local_size.isdecimal() and int(local_size) > (os.cpu_count() or 1):
        os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")


_yield_when_crowded()
from mpi4py import MPI  # noqa: E402 - MPI reads the environment when it starts

BROADCAST_BYTES = 64 * 1024**2
SLICE_BYTES = 4 * 1024**2
"""One big call is four times slower than slices of this size (page faults on a temporary)."""
_TAGS = 8192
"""Tags of slices, which are their numbers modulo this; fewer are ever in flight."""


class MpiGroup:
    """A Group over MPI.COMM_WORLD."""

    def __init__(self) -> None:
        if MPI.Is_finalized():
            raise UserFault(
                "MPI has ended in this process, and it can't be started twice",
                hint="join the other learners once: one ddl.init(), one ddl.shutdown()",
            )
        self.comm = MPI.COMM_WORLD.Dup()
        """A private communicator: a user's messages on COMM_WORLD can't get mixed with ours."""
        self.rank = self.comm.Get_rank()
        self.size = self.comm.Get_size()
        self._node = self.comm.Split_type(MPI.COMM_TYPE_SHARED, key=self.rank)
        leader = self._node.bcast(self.rank, root=0)
        self.topology = make_topology(self.rank, self.comm.allgather(leader))

    def gather(self, values: Sequence[float]) -> NDArray[np.float64]:
        """Return every rank's values, one row a rank."""
        mine = np.array(values, dtype=np.float64)
        rows = np.empty((self.size, len(mine)), dtype=np.float64)
        self.comm.Allgather(mine, rows)
        return rows

    def broadcast(self, tensors: Iterable[torch.Tensor]) -> None:
        """Replace the tensors by those of rank 0, byte for byte."""
        for tensor in tensors:
            host = tensor.detach().cpu().contiguous().reshape(-1)
            view = as_bytes(host)
            for start in range(0, len(view), BROADCAST_BYTES):
                self.comm.Bcast(view[start : start + BROADCAST_BYTES], root=0)
            if self.rank != 0:
                with torch.no_grad():
                    tensor.copy_(host.view(tensor.shape))

    def share(self, value: Any) -> Any:
        """Return rank 0's value."""
        return self.comm.bcast(value, root=0)

    def collect(self, value: Any) -> list[Any]:
        """Return every rank's value."""
        return self.comm.allgather(value)

    def barrier(self) -> None:
        """Wait for every rank."""
        self.comm.Barrier()

    def node_share(self, value: Any) -> Any:
        """Return the value of this node's first rank."""
        return self._node.bcast(value, root=0)

    def node_barrier(self) -> None:
        """Wait for every rank of this node."""
        self._node.Barrier()

    def plain_sum(self, values: torch.Tensor, divisor: int) -> None:
        """Sum by one MPI_Allreduce, in place where the values are the host's."""
        wide = wide_dtype(values.dtype)
        host = values.to("cpu", wide)
        self.comm.Allreduce(MPI.IN_PLACE, host.numpy())
        divide(host, divisor)
        if host.data_ptr() != values.data_ptr():
            values.copy_(host)

    def abort(self, code: int) -> None:
        """End every rank of the job."""
        MPI.COMM_WORLD.Abort(code)

    def close(self) -> None:
        """Wait for the other ranks and end MPI, so that exit codes arrive undisturbed."""
        if MPI.Is_finalized():
            return
        self.comm.Barrier()
        self._node.Free()
        self.comm.Free()
        MPI.Finalize()


def as_bytes(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """Return a contiguous CPU tensor of shape (n,) as bytes, without a copy."""
    array: NDArray[np.uint8] = tensor.detach().view(torch.uint8).numpy()
    return array


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
        self.values = self.values[:0].clone()
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
