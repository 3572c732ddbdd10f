"""Orthogonal parts of a dataset, one per learner, that make up the whole; new ones each epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from learner.data.sampling import Indices, epoch_order
from learner.errors import UserFault


class LearnerSamples(Dataset[Any]):
    """One learner's samples of a map-style dataset; every learner has equally many.

    Args:
        dataset: Map-style.
        rank: This learner's.
        size: The number of learners.
        seed: With the epoch, fixes the order.
        uneven: How to divide samples that don't divide evenly: `pad` repeats some from the
            beginning of the order, `drop` leaves out the last.
        shuffle: Whether `set_epoch` gives another order, fixed by (seed, epoch) alone.
    """

    def __init__(
        self, dataset: Any, rank: int, size: int, *, seed: int, uneven: str, shuffle: bool
    ) -> None:
        if uneven not in ("pad", "drop"):
            raise UserFault(f"uneven is {uneven!r}", hint="allowed are 'pad' and 'drop'")
        if len(dataset) == 0 or (uneven == "drop" and len(dataset) < size):
            raise UserFault(
                f"{len(dataset)} samples can't be divided over {size} learners",
                hint="use fewer learners, or uneven='pad'",
            )
        self.dataset = dataset
        self._rank, self._size = rank, size
        self._seed, self._uneven, self._shuffle = seed, uneven, shuffle
        # In shared memory: workers of a DataLoader, which may persist, see the change.
        self._epoch = torch.zeros((), dtype=torch.int64)
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]
        self._dealt = (0, self._of_epoch(0))

    def set_epoch(self, epoch: int) -> None:
        """Switch to this learner's samples of another epoch."""
        self._epoch.fill_(epoch)

    @property
    def indices(self) -> Indices:
        """Return this learner's samples of the current epoch, shape (n,)."""
        epoch = int(self._epoch)
        if self._dealt[0] != epoch:
            self._dealt = (epoch, self._of_epoch(epoch))
        return self._dealt[1]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[int(self.indices[index])]

    def _of_epoch(self, epoch: int) -> Indices:
        samples = len(self.dataset)
        order = epoch_order(samples, self._seed, epoch) if self._shuffle else np.arange(samples)
        each = samples // self._size if self._uneven == "drop" else -(-samples // self._size)
        mine: Indices = np.resize(order, each * self._size)[self._rank :: self._size]
        return mine
