"""Classes are counted where labels are integers and at hand, and within a limit of time."""

from __future__ import annotations

import itertools

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from learner.data.classes import LONGEST_S, count_classes
from learner.data.hdf5 import Hdf5Dataset

LABELS = torch.tensor([0, 2, 1, 2, 0, 3])
INPUTS = torch.zeros(6, 2)


class WithTargets:
    """As torchvision's datasets."""

    def __init__(self, targets):
        self.targets = targets


@pytest.mark.parametrize(
    ("dataset", "count"),
    [
        (TensorDataset(INPUTS, LABELS), 4),
        (Subset(TensorDataset(INPUTS, LABELS), [0, 1]), 4),
        (WithTargets(LABELS), 4),
        (WithTargets([0, 1, 1]), 2),
        (TensorDataset(INPUTS, LABELS.to(torch.uint8)), 4),
        (TensorDataset(INPUTS, LABELS.float()), None),
        (TensorDataset(INPUTS, LABELS - 1), None),
        (TensorDataset(INPUTS, LABELS * 1000), None),
        (TensorDataset(INPUTS, LABELS * 10**9), None),
        (TensorDataset(INPUTS, torch.zeros(6, dtype=torch.int64)), None),
        (TensorDataset(INPUTS, LABELS.reshape(3, 2).repeat(2, 1)), None),
        (WithTargets(None), None),
        (WithTargets(["a"]), None),
        ([1, 2], None),
    ],
)
def test_what_is_counted(dataset, count):
    assert count_classes(dataset) == count


@pytest.mark.parametrize("chunks", [None, (2,)])
def test_labels_in_an_hdf5_dataset(tmp_path, chunks):
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["x"] = INPUTS.numpy()
        file.create_dataset("y", data=LABELS.numpy(), chunks=chunks)
    assert count_classes(Hdf5Dataset(tmp_path / "data.h5", "x", "y")) == 4


def test_many_labels_are_counted_in_small_parts_until_it_takes_long():
    labels = torch.from_numpy(np.arange(3_000_000) % 1000)
    looks = itertools.repeat(0.0)
    assert count_classes(TensorDataset(labels, labels), looks.__next__) == 1000
    looks = iter([0.0, *[LONGEST_S] * 20, 2 * LONGEST_S])
    assert count_classes(TensorDataset(labels, labels), looks.__next__) is None
    assert next(looks, None) is None
