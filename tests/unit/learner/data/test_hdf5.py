import itertools
import pickle

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

from learner.data.classes import LONGEST_S, count_classes
from learner.data.hdf5 import Hdf5Dataset
from learner.data.sampling import fetch
from learner.errors import UserFault

ROWS = 300
IMAGES = np.random.default_rng(1).normal(size=(ROWS, 3, 40)).astype(np.float32)
LABELS = np.arange(ROWS)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "data.h5"
    with h5py.File(path, "w") as made:
        made["plain/x"], made["y"] = IMAGES, LABELS
        made.create_dataset("packed", data=IMAGES, chunks=(7, 3, 40), compression="gzip")
        made["big_endian"] = IMAGES.astype(">f4")
        made["short"] = IMAGES[:5]
        made["words"] = ["a"] * ROWS
        made.create_dataset("nothing", shape=(0, 3), dtype="f4")
        made["scalar"] = 3.0
    return path


@pytest.mark.parametrize("name", ["plain/x", "packed", "big_endian"])
def test_rows_are_read_in_any_order(file, name):
    dataset = Hdf5Dataset(file, name, "y")
    assert len(dataset) == ROWS
    for indices in ([5], [299, 0, 7, 7, 8, 150], list(range(100, 130)), []):
        where = np.array(indices, dtype=np.int64)
        (inputs,), targets = fetch(dataset, where)
        assert inputs.dtype == torch.float32
        assert torch.equal(inputs, torch.from_numpy(IMAGES[where]))
        assert targets.tolist() == indices
        one_by_one = dataset.__getitems__(indices)
        assert [int(target) for _, target in one_by_one] == indices
    assert torch.equal(dataset[-1][0], torch.from_numpy(IMAGES[-1]))
    with pytest.raises(IndexError):
        dataset[ROWS]
    with pytest.raises(IndexError):
        dataset.batch(np.array([-1]))
    dataset.close()


def test_inputs_may_be_several_and_batches_are_writable(file):
    (first, second), targets = fetch(Hdf5Dataset(file, ["plain/x", "packed"], "y"), np.array([4]))
    assert torch.equal(first, second)
    first.zero_()
    targets.zero_()
    assert torch.equal(Hdf5Dataset(file, "plain/x", "y")[4][0], torch.from_numpy(IMAGES[4]))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # Python 3.12 and newer
def test_a_dataset_works_in_other_processes(file):
    dataset = Hdf5Dataset(file, "packed", "y")
    assert dataset[3][1] == 3
    copy = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(copy[9][0], dataset[9][0])
    # Workers that are forked while the file is open open it themselves.
    loader = DataLoader(dataset, batch_size=50, num_workers=1, multiprocessing_context="fork")
    seen = [targets for _, targets in loader]
    assert torch.cat(seen).tolist() == list(range(ROWS))
    assert dataset[3][1] == 3


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        ("plain/z", "y", r"no dataset 'plain/z'; it has .*\n  HINT: did you mean 'plain/x'\?"),
        ("plain", "y", "no dataset 'plain'"),
        ("short", "y", "'short' has 5, 'y' has 300"),
        ("words", "y", "'words' .* makes no tensors"),
        ("scalar", "y", "'scalar' .* makes no tensors"),
        ("nothing", "nothing", "have no rows"),
    ],
)
def test_a_wrong_dataset_is_named(file, inputs, targets, message):
    with pytest.raises(UserFault, match=message):
        Hdf5Dataset(file, inputs, targets)


def test_a_wrong_file_is_named(tmp_path, file):
    with pytest.raises(UserFault, match="there is no file"):
        Hdf5Dataset(tmp_path / "absent.h5", "x", "y")
    text = tmp_path / "text.h5"
    text.write_text("not HDF5")
    with pytest.raises(UserFault, match="can't be read as HDF5"):
        Hdf5Dataset(text, "x", "y")
    cut = tmp_path / "cut.h5"
    cut.write_bytes(file.read_bytes()[:-2000])
    with pytest.raises(UserFault, match="cut"):
        Hdf5Dataset(cut, "plain/x", "y")


CLASSES = torch.tensor([0, 2, 1, 2, 0, 3])
INPUTS = torch.zeros(6, 2)


class WithTargets:
    """As torchvision's datasets."""

    def __init__(self, targets):
        self.targets = targets


@pytest.mark.parametrize(
    ("dataset", "count"),
    [
        (TensorDataset(INPUTS, CLASSES), 4),
        (Subset(TensorDataset(INPUTS, CLASSES), [0, 1]), 4),
        (WithTargets(CLASSES), 4),
        (WithTargets([0, 1, 1]), 2),
        (TensorDataset(INPUTS, CLASSES.to(torch.uint8)), 4),
        (TensorDataset(INPUTS, CLASSES.float()), None),
        (TensorDataset(INPUTS, CLASSES - 1), None),
        (TensorDataset(INPUTS, CLASSES * 1000), None),
        (TensorDataset(INPUTS, CLASSES * 10**9), None),
        (TensorDataset(INPUTS, torch.zeros(6, dtype=torch.int64)), None),
        (TensorDataset(INPUTS, CLASSES.reshape(3, 2).repeat(2, 1)), None),
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
        file.create_dataset("y", data=CLASSES.numpy(), chunks=chunks)
    assert count_classes(Hdf5Dataset(tmp_path / "data.h5", "x", "y")) == 4


def test_many_labels_are_counted_in_small_parts_until_it_takes_long():
    labels = torch.from_numpy(np.arange(3_000_000) % 1000)
    looks = itertools.repeat(0.0)
    assert count_classes(TensorDataset(labels, labels), looks.__next__) == 1000
    looks = iter([0.0, *[LONGEST_S] * 20, 2 * LONGEST_S])
    assert count_classes(TensorDataset(labels, labels), looks.__next__) is None
    assert next(looks, None) is None
