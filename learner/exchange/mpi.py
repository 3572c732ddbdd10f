"""Learners over MPI. The import starts MPI: only for more than one learner.

MPI moves bytes and adds nothing up: its reductions add in an order that depends on the placement
of the ranks (seen: block and cyclic placement of 4 ranks on 2 nodes differ in the last bits).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from numpy.typing import NDArray

SLICE_BYTES = 4 * 1024**2
"""One big call is four times slower than slices of this size (page faults on a temporary)."""
BROADCAST_BYTES = 64 * 1024**2


class MpiExchange:
    """An Exchange over MPI.COMM_WORLD, or another communicator."""

    def __init__(self, communicator: MPI.Intracomm | None = None) -> None:
        self._comm = MPI.COMM_WORLD if communicator is None else communicator
        self.rank = self._comm.Get_rank()
        self.size = self._comm.Get_size()
        self._scratch: dict[torch.dtype, torch.Tensor] = {}

    def sum_in_place(self, values: torch.Tensor) -> None:
        """Replace values by their sum over the ranks: each rank adds up one part of each slice."""
        host = values if values.device.type == "cpu" else values.cpu()
        even = host.numel() - host.numel() % self.size
        step = max(1, SLICE_BYTES // host.element_size() // self.size) * self.size
        for start in range(0, even, step):
            self._sum_slice(host[start : min(start + step, even)])
        if even < host.numel():
            self._sum_rest(host[even:])
        if host is not values:
            values.copy_(host)

    def _sum_slice(self, part: torch.Tensor) -> None:
        received = self._received(part)
        self._comm.Alltoall(_bytes(part), _bytes(received))
        total = sum_rows(received.view(self.size, -1))
        self._comm.Allgather(_bytes(total), _bytes(part))

    def _sum_rest(self, part: torch.Tensor) -> None:
        everything = part.new_empty(self.size * part.numel())
        self._comm.Allgather(_bytes(part), _bytes(everything))
        part.copy_(sum_rows(everything.view(self.size, -1)))

    def _received(self, part: torch.Tensor) -> torch.Tensor:
        buffer = self._scratch.get(part.dtype)
        if buffer is None or buffer.numel() < part.numel():
            buffer = self._scratch[part.dtype] = torch.empty_like(part)
        return buffer[: part.numel()]

    def gather(self, values: Sequence[float]) -> NDArray[np.float64]:
        """Return every rank's values, one row a rank."""
        mine = np.array(values, dtype=np.float64)
        rows = np.empty((self.size, len(mine)), dtype=np.float64)
        self._comm.Allgather(mine, rows)
        return rows

    def broadcast(self, tensors: Iterable[torch.Tensor]) -> None:
        """Replace the tensors by those of rank 0, byte for byte."""
        for tensor in tensors:
            host = tensor.detach().cpu().contiguous().reshape(-1)
            view = _bytes(host)
            for start in range(0, len(view), BROADCAST_BYTES):
                self._comm.Bcast(view[start : start + BROADCAST_BYTES], root=0)
            if self.rank != 0:
                with torch.no_grad():
                    tensor.copy_(host.view(tensor.shape))

    def share(self, value: Any) -> Any:
        """Return rank 0's value."""
        return self._comm.bcast(value, root=0)

    def collect(self, value: Any) -> list[Any]:
        """Return every rank's value."""
        return self._comm.allgather(value)

    def abort(self, code: int) -> None:
        """End every rank of the job."""
        MPI.COMM_WORLD.Abort(code)

    def close(self) -> None:
        """Wait for the other ranks and end MPI, so that exit codes arrive undisturbed."""
        self._comm.Barrier()
        if self._comm == MPI.COMM_WORLD and not MPI.Is_finalized():
            MPI.Finalize()


def sum_rows(rows: torch.Tensor) -> torch.Tensor:
    """Return the sum of the rows, added from the first to the last; halves are added in float32."""
    wide = torch.float32 if rows.dtype in (torch.float16, torch.bfloat16) else rows.dtype
    total = rows[0].to(wide, copy=True)
    for row in rows[1:]:
        total += row
    return total.to(rows.dtype)


def _bytes(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """Return a contiguous CPU tensor of shape (n,) as bytes, without a copy."""
    array: NDArray[np.uint8] = tensor.view(torch.uint8).numpy()
    return array
