"""Global batches, fixed by (seed, epoch) alone, and each learner's contiguous share of them.

The number of learners changes which learner computes a sample, never which batch the sample is in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset, default_collate

from learner.data.hdf5 import Hdf5Dataset
from learner.errors import UserFault
from psrv.cursor.base import chunk_count, first_chunk

Indices = NDArray[np.int64]


def epoch_order(samples: int, seed: int, epoch: int) -> Indices:
    """Return the order of the samples in one epoch, a permutation fixed by (seed, epoch)."""
    key = np.array([seed & _MASK, epoch & _MASK], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key)).permutation(samples)


_MASK = 2**64 - 1


def batch_count(samples: int, batch_size: int) -> int:
    """Return the number of global batches in an epoch; the last one may differ in size."""
    return chunk_count(samples, batch_size)


def batch_start(samples: int, batch: int, batch_size: int) -> int:
    """Return how many samples of an epoch come before a global batch, or its end."""
    return batch * batch_size if batch < batch_count(samples, batch_size) else samples


def places_left(samples: int, epoch: int, done: Iterable[Sequence[int]]) -> Indices:
    """Return which places of an epoch's order are left to synchronous learners.

    Args:
        samples: In the data set.
        epoch: Counted from 0.
        done: What learners of a parameter server have done, with gaps: ranges of positions (see
            psrv.cursor.base).
    """
    left = np.ones(samples, dtype=bool)
    for start, stop in done:
        left[max(0, start - epoch * samples) : max(0, stop - epoch * samples)] = False
    return np.flatnonzero(left)


def share(count: int, rank: int, size: int) -> slice:
    """Return rank's contiguous part of `count` samples; parts differ by one sample at most."""
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
        """Return this share's fraction of the global batch."""
        return len(self.indices) / self.batch_samples


def share_of_batch(order: Indices, batch: int, batch_size: int, rank: int, size: int) -> Share:
    """Return rank's share of the global batch number `batch` of an epoch.

    If whole batches give every learner two samples, fewer learners share a smaller last batch, so
    that nobody gets a single sample, which batch norm can't be trained on.
    """
    start = batch * batch_size
    whole = order[start : start + first_chunk(len(order) - start, batch_size)]
    sharing = size if batch_size < 2 * size else max(1, min(size, len(whole) // 2))
    return Share(whole[share(len(whole), rank, sharing)], len(whole))


def fetch(dataset: Any, indices: Indices) -> tuple[tuple[Any, ...], Any]:
    """Return (inputs, targets) of the samples, collated; inputs are the model's arguments."""
    if type(dataset) is TensorDataset:
        where = torch.from_numpy(indices)
        batch: Any = tuple(tensor[where] for tensor in dataset.tensors)
    elif type(dataset) is Hdf5Dataset:
        batch = dataset.batch(indices)
    else:
        batch = _collated(dataset, indices)
    if not isinstance(batch, Sequence) or len(batch) < 2:
        raise UserFault(
            f"a sample of the dataset {type(dataset).__name__} is not (inputs, target)",
            hint="return a tuple from __getitem__; its last item is the target",
        )
    return tuple(batch[:-1]), batch[-1]


def _collated(dataset: Any, indices: Indices) -> Any:
    """Return samples as one batch.

    Raises:
        UserFault: they differ in shape, or hold what no batch can hold.
    """
    samples = _samples(dataset, [int(index) for index in indices])
    try:
        return default_collate(samples)
    except (RuntimeError, TypeError) as error:
        described = [_described(sample) for sample in samples]
        other = next((n for n, text in enumerate(described) if text != described[0]), None)
        kind, first = type(dataset).__name__, f"sample {indices[0]} is {described[0]}"
        if other is None:
            raise UserFault(
                f"samples of the dataset {kind} can't become a batch: {first}",
                hint="return tensors, numpy arrays, numbers, or tuples and dicts of these, from "
                f"__getitem__ ({str(error).splitlines()[0]})",
            ) from error
        raise UserFault(
            f"samples of the dataset {kind} can't become one batch: {first}, sample "
            f"{indices[other]} is {described[other]}",
            hint="pad or crop them to one shape in __getitem__; or train with your own loop "
            "(framework.command), whose DataLoader has a collate_fn",
        ) from error


def _described(value: Any) -> str:
    """Return types and shapes of a sample."""
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_described, value))})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_described(item)}" for key, item in value.items()) + "}"
    shape = getattr(value, "shape", None)
    return type(value).__name__ + ("" if shape is None else f"{list(shape)}")


def _samples(dataset: Any, indices: list[int]) -> Any:
    if hasattr(dataset, "__getitems__"):
        return dataset.__getitems__(indices)
    return [dataset[index] for index in indices]


def to_device(value: Any, device: torch.device) -> Any:
    """Return a batch with all its tensors on a device."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: to_device(item, device) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(to_device(item, device) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(to_device(item, device) for item in value)
    return value
