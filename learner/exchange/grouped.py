"""The base of every exchange among several learners: its group, and small sums."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from learner.exchange.base import Buffer, Group


class GroupedExchange(ABC):
    """Passes the group's methods on; a subclass says how buffers are summed."""

    name = ""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.rank = group.rank
        self.size = group.size
        self.topology = group.topology
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

    def gather(self, values: Sequence[float]) -> NDArray[np.float64]:
        """Return every learner's values, one row a rank."""
        return self.group.gather(values)

    def broadcast(self, tensors: Iterable[torch.Tensor]) -> None:
        """Replace the tensors by those of rank 0."""
        self.group.broadcast(tensors)

    def share(self, value: Any) -> Any:
        """Return rank 0's value."""
        return self.group.share(value)

    def collect(self, value: Any) -> list[Any]:
        """Return every learner's value."""
        return self.group.collect(value)

    def barrier(self) -> None:
        """Wait for every learner."""
        self.group.barrier()

    def node_share(self, value: Any) -> Any:
        """Return the value of this node's first learner."""
        return self.group.node_share(value)

    def node_barrier(self) -> None:
        """Wait for every learner of this node."""
        self.group.node_barrier()

    def plain_sum(self, values: torch.Tensor, divisor: int) -> None:
        """Sum by the library's own allreduce."""
        self.group.plain_sum(values, divisor)

    def abort(self, code: int) -> None:
        """End every learner."""
        self.group.abort(code)

    def close(self) -> None:
        """Free the memory, wait for the others and leave."""
        for scratch in self._scratch.values():
            scratch.free()
        self._scratch.clear()
        self.group.close()
