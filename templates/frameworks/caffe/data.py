"""Caffe's data layers as datasets: HDF5 files, and the records of an LMDB."""

from __future__ import annotations

import os
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from dlctl.contract.ground import protobuf as wire
from learner.errors import UserFault

from .prototxt import Message
from .weights import read_mean

_CHANNELS, _HEIGHT, _WIDTH, _DATA, _LABEL, _FLOATS, _ENCODED = 1, 2, 3, 4, 5, 6, 7
"""Fields of caffe.proto's Datum."""


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """Images, each cropped at a random place and mirrored at random whenever it is read.

    Draws from torch's generator, whose state a checkpoint keeps.
    """

    def __init__(self, images: Tensor, labels: Tensor, size: int, mirror: bool) -> None:
        self._images, self._labels, self._size, self._mirror = images, labels, size, mirror

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return an image and its label."""
        image, size = self._images[index], self._size
        if size:
            top, left = (int(torch.randint(n - size + 1, ())) for n in image.shape[-2:])
            image = image[..., top : top + size, left : left + size]
        if self._mirror and int(torch.randint(2, ())):
            image = image.flip(-1)
        return image, self._labels[index]

    def example(self) -> Tensor:
        """Return a batch of one image, without drawing a number."""
        return _middle(self._images[:1], self._size) if self._size else self._images[:1]


Samples = TensorDataset | Augmented


def dataset(layer: Message, folder: Path, phase: str) -> tuple[Samples, int]:
    """Return the samples of a data layer, and its batch size.

    Args:
        phase: In TRAIN crops are at random places, in TEST in the middle.

    Raises:
        UserFault: the data can't be read, or the layer asks for what this version lacks.
    """
    kind = layer.get("type", "")
    if kind == "HDF5Data":
        p = layer.message("hdf5_data_param")
        data, labels = _hdf5(layer, find(p.get("source", ""), folder, layer), folder)
    elif kind == "Data":
        p = layer.message("data_param")
        data, labels = _lmdb(layer, find(p.get("source", ""), folder, layer), p)
    else:
        raise UserFault(
            f"{layer.where}: the data layer {kind!r} is not in dlctl's small caffe",
            hint="it has HDF5Data, and Data with an LMDB",
        )
    batch = p.get("batch_size", 0)
    if batch < 1:
        raise UserFault(f"{layer.where}: batch_size is missing")
    return _transformed(layer, data, labels, folder, phase), batch


def find(source: str, folder: Path, layer: Message) -> Path:
    """Return a source: in the submitted folder, or in DATA_DIR, there also by its last part.

    Raises:
        UserFault: it is in neither.
    """
    data_dir = Path(os.environ.get("DATA_DIR") or folder)
    places = [folder / source, data_dir / source, data_dir / Path(source).name]
    for path in places if source else []:
        if path.exists():
            return path
    raise UserFault(
        f"{layer.where}: there is no source {source!r} in the submitted folder or in DATA_DIR",
        hint="name it relative to the manifest's folder, or to the data store's container",
    )


def _hdf5(layer: Message, listing: Path, folder: Path) -> tuple[Tensor, Tensor]:
    tops = layer.list_of("top", "")
    names = [line.strip() for line in listing.read_text().splitlines() if line.strip()]
    arrays: list[list[np.ndarray]] = [[] for _ in tops]
    for name in names:
        path = find(name, folder, layer)
        try:
            with h5py.File(path, "r") as file:
                for top, found in zip(tops, arrays, strict=True):
                    found.append(np.asarray(file[top]))
        except (OSError, KeyError) as error:
            raise UserFault(f"{layer.where}: {path.name}: {error}") from None
    if not names:
        raise UserFault(f"{layer.where}: {listing.name} lists no file")
    data, labels = (np.concatenate(found) for found in arrays[:2])
    return torch.from_numpy(data.astype(np.float32)), torch.from_numpy(labels.astype(np.float32))


def _lmdb(layer: Message, path: Path, p: Message) -> tuple[Tensor, Tensor]:
    if p.get("backend", "LEVELDB") != "LMDB":
        raise UserFault(f"{layer.where}: of databases dlctl's small caffe reads only LMDB")
    try:
        import lmdb
    except ImportError:
        raise UserFault(
            f"{layer.where}: the nodes' Python lacks lmdb, which reads {path.name}",
            hint="add to the manifest: requirements: [lmdb]",
        ) from None
    images, labels = [], []
    with lmdb.open(str(path), readonly=True, lock=False) as base, base.begin() as view:
        for _, value in view.cursor():
            image, label = _datum(memoryview(value), layer)
            images.append(image)
            labels.append(label)
    return torch.from_numpy(np.stack(images)), torch.tensor(labels, dtype=torch.float32)


def _datum(record: memoryview, layer: Message) -> tuple[np.ndarray, float]:
    numbers = {_CHANNELS: 1, _HEIGHT: 1, _WIDTH: 1, _LABEL: 0}
    values: list[np.ndarray] = []
    for number, _, value in wire.fields(record):
        if isinstance(value, int):
            if number == _ENCODED and value:
                raise UserFault(f"{layer.where}: dlctl's small caffe reads no encoded images")
            numbers[number] = value
        elif number in (_DATA, _FLOATS):
            kind = "u1" if number == _DATA else "<f4"
            values.append(np.frombuffer(value, kind).astype(np.float32))
    shape = (numbers[_CHANNELS], numbers[_HEIGHT], numbers[_WIDTH])
    return np.concatenate(values).reshape(shape), float(numbers[_LABEL])


def _transformed(layer: Message, data: Tensor, labels: Tensor, folder: Path, phase: str) -> Samples:
    """Return the samples as Caffe's DataTransformer makes them: (pixel - mean) * scale, a crop."""
    p = layer.message("transform_param")
    means, scale = p.list_of("mean_value", 0.0), p.get("scale", 1.0)
    mean_file, size, mirror = p.get("mean_file", ""), p.get("crop_size", 0), p.get("mirror", False)
    p.refuse_unknown((), "transform_param")
    if means and mean_file:
        raise UserFault(f"{layer.where}: give mean_file or mean_value, not both")
    if mean_file:
        path = find(mean_file, folder, layer)
        mean = read_mean(path)
        if mean.numel() != data[0].numel():
            raise UserFault(f"{layer.where}: {path.name} has the shape {list(mean.shape)}, and the "
                            f"images have {list(data.shape[1:])}")  # fmt: skip
        data = data - mean.reshape(data.shape[1:])
    elif means:
        data = data - torch.tensor(means).reshape(1, -1, 1, 1)
    data = data * scale if scale != 1.0 else data
    if size and (data.dim() != 4 or size > min(data.shape[2:])):
        raise UserFault(f"{layer.where}: crop_size is {size}, and the images have the shape "
                        f"{list(data.shape[1:])}")  # fmt: skip
    if size and phase != "TRAIN":
        data, size = _middle(data, size), 0
    return Augmented(data, labels, size, mirror) if size or mirror else TensorDataset(data, labels)


def _middle(images: Tensor, size: int) -> Tensor:
    top, left = ((length - size) // 2 for length in images.shape[-2:])
    return images[..., top : top + size, left : left + size]
