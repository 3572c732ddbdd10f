"""Collective communication without MPI or torch.distributed: its Protocols, and what is shared.

A `Group` is the learners and the small messages between them. An `Exchange` is a group that can sum
large tensors: `Buffer`s, in which gradients live, and, where a node's learners share memory, one
copy of the weights for all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from learner.errors import UserFault
from learner.exchange.topology import Topology

G = TypeVar("G", bound="Group")


class Group(Protocol):
    """One learner's view of all of them. Every method but `abort` is collective."""

    rank: int
    size: int
    topology: Topology

    def gather(self, values: Sequence[float]) -> NDArray[np.float64]:
        """Return every learner's values: float64, shape (size, len(values)), in rank order."""

    def broadcast(self, tensors: Iterable[torch.Tensor]) -> None:
        """Replace the tensors by those of rank 0, byte for byte."""

    def share(self, value: Any) -> Any:
        """Return rank 0's value (small; plain Python)."""

    def collect(self, value: Any) -> list[Any]:
        """Return every learner's value (small; plain Python), in rank order."""

    def barrier(self) -> None:
        """Wait until every learner is here."""

    def node_share(self, value: Any) -> Any:
        """Return the value of the first learner of this node (small; plain Python)."""

    def node_barrier(self) -> None:
        """Wait until every learner of this node is here."""

    def plain_sum(self, values: torch.Tensor, divisor: int) -> None:
        """Replace values (shape (n,)) by their sum, divided, with the library's own allreduce.

        The baseline for comparisons. Halves travel as float32.
        """

    def abort(self, code: int) -> None:
        """End all learners now; does not return if there is more than one."""

    def close(self) -> None:
        """Wait for the others and leave."""


class Buffer(Protocol):
    """Memory of this learner whose parts are summed over the learners, in place.

    Between `begin` and the end of `wait` the begun parts belong to the exchange.
    """

    values: torch.Tensor
    """Shape (n,)."""

    def begin(self, start: int, stop: int, divisor: int = 1) -> None:
        """Begin to sum, and then divide, values[start:stop]. Does not wait.

        Every learner begins the same parts in the same order.
        """

    def progress(self) -> None:
        """Make progress without waiting for anybody."""

    def wait(self) -> None:
        """Wait until all begun parts hold their results on every learner of this node."""

    def free(self) -> None:
        """Free the memory; `values` is gone."""


class Exchange(Group, Protocol):
    """A group that can sum large tensors.

    Sums are taken in rank order, halves in float32 and rounded once: every learner gets the same
    bits, wherever the learners are placed. (Only `torch` leaves the order to its library.)
    """

    name: str
    """`single`, `shm`, `mpi`, `hierarchical` or `torch`."""

    def buffer(self, count: int, dtype: torch.dtype, device: torch.device | None = None) -> Buffer:
        """Return a buffer of `count` zeros.

        Raises:
            UserFault: There is not enough shared memory; the message has both numbers.
        """

    def shared(self, count: int, dtype: torch.dtype) -> torch.Tensor | None:
        """Return zeros of shape (count,), one copy for the node's learners; None if unsupported."""

    def sum_in_place(self, values: torch.Tensor) -> None:
        """Replace values (shape (n,), contiguous) by the sum over the learners."""


class GroupedExchange(ABC, Generic[G]):
    """An Exchange with its group's methods; a subclass says how buffers are summed."""

    name = ""

    def __init__(self, group: G) -> None:
        self.group = group
        self.rank, self.size, self.topology = group.rank, group.size, group.topology
        self.gather, self.broadcast = group.gather, group.broadcast
        self.share, self.collect, self.barrier = group.share, group.collect, group.barrier
        self.node_share, self.node_barrier = group.node_share, group.node_barrier
        self.plain_sum, self.abort = group.plain_sum, group.abort
        self._scratch: dict[tuple[torch.dtype, torch.device], Buffer] = {}

    @abstractmethod
    def buffer(self, count: int, dtype: torch.dtype, device: torch.device | None = None) -> Buffer:
        """Return a buffer of `count` zeros."""

    def shared(self, count: int, dtype: torch.dtype) -> torch.Tensor | None:  # noqa: ARG002
        """Return None: no memory is shared."""
        return None

    def sum_in_place(self, values: torch.Tensor) -> None:
        """Sum through a buffer that is kept for the next call."""
        kind = (values.dtype, values.device)
        scratch = self._scratch.get(kind)
        if scratch is None or len(scratch.values) < len(values):
            if scratch is not None:
                scratch.free()
            scratch = self._scratch[kind] = self.buffer(len(values), *kind)
        scratch.values[: len(values)].copy_(values)
        scratch.begin(0, len(values))
        scratch.wait()
        values.copy_(scratch.values[: len(values)])

    def close(self) -> None:
        """Free the memory, wait for the others and leave."""
        for scratch in self._scratch.values():
            scratch.free()
        self._scratch.clear()
        self.group.close()

    def _refuse_gpus(self, device: torch.device | None) -> None:
        if device is not None and device.type != "cpu":
            raise UserFault(
                f"the exchange {self.name} works in the host's memory, and the model is on "
                f"{device}",
                hint="use exchange: torch (NCCL) on GPUs",
            )
