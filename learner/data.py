"""Global batches, fixed by (seed, epoch) alone, and each learner's contiguous share of them.

How many learners there are changes who computes a sample, never which batch it is in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset, default_collate

from learner.faults import UserFault
from learner.sources import Hdf5Dataset

Indices = NDArray[np.int64]


def epoch_order(samples: int, seed: int, epoch: int) -> Indices:
    """Return the order of the samples in one epoch, a permutation fixed by (seed, epoch)."""
    key = np.array([seed & _MASK, epoch & _MASK], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key)).permutation(samples)


_MASK = 2**64 - 1


def batch_count(samples: int, batch_size: int) -> int:
    """Return the number of global batches in an epoch; the last one may be smaller."""
    return -(-samples // batch_size)


def share(count: int, rank: int, size: int) -> slice:
    """Return the contiguous part of `count` samples that is rank's; they differ by one at most."""
    base, extra = divmod(count, size)
    start = rank * base + min(rank, extra)
    return slice(start, start + base + (rank < extra))


@dataclass(frozen=True)
class Share:
    """One learner's part of one global batch."""

    indices: Indices
    """Shape (n,); n may be 0."""
    batch_samples: int
    """Samples in the whole global batch."""

    @property
    def weight(self) -> float:
        """Return this share's part of the global batch."""
        return len(self.indices) / self.batch_samples


def share_of_batch(order: Indices, batch: int, batch_size: int, rank: int, size: int) -> Share:
    """Return rank's share of the global batch number `batch` of an epoch."""
    return share_of(order[batch * batch_size : (batch + 1) * batch_size], rank, size)


def share_of(whole: Indices, rank: int, size: int) -> Share:
    """Return rank's share of a global batch."""
    return Share(whole[share(len(whole), rank, size)], len(whole))


class EpochBatches:
    """The global batches of one epoch, or of what is left of it.

    Learners of a parameter server leave gaps behind, between what they have done. Who goes on from
    there in step trains on what is left, in batches as even as can be: a last one of a single
    sample, say, is none that batch norm can do.

    Args:
        samples: Of the data set.
        batch_size: Of a global batch, at most.
        epoch: Counted from 0.
        done: What was done in gaps, as ranges of positions (see psrv.cursor).
    """

    def __init__(
        self, samples: int, batch_size: int, epoch: int, done: Iterable[Sequence[int]]
    ) -> None:
        left = np.ones(samples, dtype=bool)
        for start, stop in done:
            left[max(0, start - epoch * samples) : max(0, stop - epoch * samples)] = False
        self.places: Indices = np.flatnonzero(left)
        """Which places of the epoch's order are left."""
        self.count = batch_count(len(self.places), batch_size)
        self._batch_size = batch_size
        self._is_whole = len(self.places) == samples

    def places_of(self, batch: int) -> slice:
        """Return which of the places a batch has."""
        if self._is_whole:
            return slice(batch * self._batch_size, (batch + 1) * self._batch_size)
        return share(len(self.places), batch, self.count)

    def places_after(self, batches: int) -> Indices:
        """Return those that are left after so many batches."""
        return self.places[self.places_of(batches - 1).stop :] if batches else self.places


def fetch(dataset: Any, indices: Indices) -> tuple[tuple[Any, ...], Any]:
    """Return (inputs, targets) of the samples, collated; inputs are the model's arguments."""
    if type(dataset) is TensorDataset:
        where = torch.from_numpy(indices)
        batch: Any = tuple(tensor[where] for tensor in dataset.tensors)
    elif type(dataset) is Hdf5Dataset:
        batch = dataset.batch(indices)
    else:
        batch = default_collate(_samples(dataset, [int(index) for index in indices]))
    if not isinstance(batch, Sequence) or len(batch) < 2:
        raise UserFault(
            f"a sample of the dataset {type(dataset).__name__} is not (inputs, target)",
            hint="return a tuple from __getitem__; its last item is the target",
        )
    return tuple(batch[:-1]), batch[-1]


def _samples(dataset: Any, indices: list[int]) -> Any:
    if hasattr(dataset, "__getitems__"):
        return dataset.__getitems__(indices)
    return [dataset[index] for index in indices]


def to_device(value: Any, device: torch.device) -> Any:
    """Return a batch with every tensor in it on a device."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: to_device(item, device) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(to_device(item, device) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(to_device(item, device) for item in value)
    return value
