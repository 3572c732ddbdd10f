"""One learner: nothing to exchange, no MPI."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


class SingleExchange:
    """An Exchange of one learner."""

    rank = 0
    size = 1

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

    def abort(self, code: int) -> None:
        """Do nothing: the exit code says it."""

    def close(self) -> None:
        """Do nothing."""
