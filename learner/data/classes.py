"""Count the classes of a dataset, where its labels can be had without reading its samples."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from torch.utils.data import Subset, TensorDataset

from learner.data.hdf5 import Hdf5Dataset

LONGEST_S = 0.05
"""Labels of which more time would be needed are not counted."""
_AT_ONCE = 1 << 17
_MOST = 100_000
"""More different integers are no classes."""


def count_classes(dataset: Any, clock: Callable[[], float] = time.monotonic) -> int | None:
    """Return how many classes there are: one more than the largest label.

    None if nobody knows: if the labels are no integers from 0 on, one for each sample, or if they
    can't be had quickly from a `TensorDataset`, an `Hdf5Dataset` or a dataset with `targets`.
    """
    labels, until = _labels(dataset), clock() + LONGEST_S
    if labels is None or labels.dtype.kind not in "iu" or labels.ndim != 1 or not len(labels):
        return None
    present = np.zeros(_MOST, dtype=bool)
    for begin in range(0, len(labels), _AT_ONCE):
        if clock() > until:
            return None
        part = np.asarray(labels[begin : begin + _AT_ONCE])
        if part.min() < 0 or part.max() >= _MOST:
            return None
        present[part] = True
    count = int(np.flatnonzero(present)[-1]) + 1
    # Numbers such as ages or prices leave most integers out.
    return count if count > 1 and 2 * int(present.sum()) > count else None


def _labels(dataset: Any) -> Any:
    """Return something like a numpy array, or None."""
    if isinstance(dataset, Subset):
        return _labels(dataset.dataset)
    if isinstance(dataset, Hdf5Dataset):
        return dataset.targets()
    in_memory = isinstance(dataset, TensorDataset)
    found: Any = dataset.tensors[-1] if in_memory else getattr(dataset, "targets", None)
    if isinstance(found, list) and len(found) <= 10 * _AT_ONCE:
        found = np.asarray(found) if all(type(label) is int for label in found[:8]) else None
    if hasattr(found, "numpy") and found.device.type == "cpu":
        found = found.detach().numpy()
    return found if isinstance(found, np.ndarray) else None
