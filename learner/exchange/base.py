"""How learners agree: the Protocol that the training loop knows. No MPI is named here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray


class Exchange(Protocol):
    """One learner's view of all of them. Every method but `abort` is called by every learner."""

    rank: int
    size: int

    def sum_in_place(self, values: torch.Tensor) -> None:
        """Replace values (any dtype, shape (n,), contiguous) by the sum over the learners.

        Summed in rank order: every learner gets the same bits, wherever the learners are placed.
        """

    def gather(self, values: Sequence[float]) -> NDArray[np.float64]:
        """Return every learner's values: float64, shape (size, len(values)), in rank order."""

    def broadcast(self, tensors: Iterable[torch.Tensor]) -> None:
        """Replace the tensors by those of rank 0."""

    def share(self, value: Any) -> Any:
        """Return rank 0's value (small; plain Python)."""

    def collect(self, value: Any) -> list[Any]:
        """Return every learner's value (small; plain Python), in rank order."""

    def abort(self, code: int) -> None:
        """End all learners now; does not return where there is more than one."""

    def close(self) -> None:
        """Wait for the others and leave."""
