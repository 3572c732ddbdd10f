"""The group of an MPI world. The import starts MPI: only for more than one learner."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from learner.errors import UserFault
from learner.exchange.arithmetic import divide, wide_dtype
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


class MpiGroup:
    """A Group over MPI.COMM_WORLD, or another communicator."""

    def __init__(self, communicator: MPI.Intracomm | None = None) -> None:
        if MPI.Is_finalized():
            raise UserFault(
                "MPI has ended in this process, and it can't be started twice",
                hint="join the other learners once: one ddl.init(), one ddl.shutdown()",
            )
        world = MPI.COMM_WORLD if communicator is None else communicator
        self.is_world = communicator is None
        self.comm = world.Dup()
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
        if self.is_world:
            MPI.Finalize()


def as_bytes(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """Return a contiguous CPU tensor of shape (n,) as bytes, without a copy."""
    array: NDArray[np.uint8] = tensor.detach().view(torch.uint8).numpy()
    return array
