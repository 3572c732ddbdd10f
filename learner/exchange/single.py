"""One learner: nothing to exchange, no MPI."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from learner.exchange.arithmetic import divide
from learner.exchange.base import Buffer
from learner.exchange.topology import Topology


class SingleBuffer:
    """A Buffer of one learner."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values

    def begin(self, start: int, stop: int, divisor: int = 1) -> None:
        """Divide: over one learner, the values are their sum."""
        divide(self.values[start:stop], divisor)

    def progress(self) -> None:
        """Do nothing."""

    def wait(self) -> None:
        """Do nothing."""

    def free(self) -> None:
        """Drop the memory."""
        self.values = self.values[:0]


class SingleExchange:
    """An Exchange of one learner."""

    name = "single"
    rank = 0
    size = 1
    topology = Topology(0, (0,))

    def buffer(self, count: int, dtype: torch.dtype, device: torch.device | None = None) -> Buffer:
        """Return a buffer of `count` zeros."""
        return SingleBuffer(torch.zeros(count, dtype=dtype, device=device))

    def shared(self, count: int, dtype: torch.dtype) -> torch.Tensor | None:  # noqa: ARG002
        """Return None: there is nobody to share with."""
        return None

    def sum_in_place(self, values: torch.Tensor) -> None:
        """Leave the values as they are."""

    def gather(self, values: Sequence[float]) -> NDArray[np.float64]:
        """Return the values as the only row."""
        return np.array([values], dtype=np.float64)

    def broadcast(self, tensors: Iterable[torch.Tensor]) -> None:
        """Leave the tensors as they are."""

    def share(self, value: Any) -> Any:
        """Return the value."""
        return value

    def collect(self, value: Any) -> list[Any]:
        """Return the value alone."""
        return [value]

    def barrier(self) -> None:
        """Do nothing."""

    def node_share(self, value: Any) -> Any:
        """Return the value."""
        return value

    def node_barrier(self) -> None:
        """Do nothing."""

    def plain_sum(self, values: torch.Tensor, divisor: int) -> None:
        """Divide: the values are their sum."""
        divide(values, divisor)

    def abort(self, code: int) -> None:
        """Do nothing: the exit code tells it."""

    def close(self) -> None:
        """Do nothing."""
