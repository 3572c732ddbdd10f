"""Read and write .caffemodel: the weights of a net, a message NetParameter of caffe.proto."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from dlctl.contract.ground import protobuf as wire
from learner.errors import UserFault

_NAME, _OLD_LAYERS, _LAYERS = 1, 2, 100
_LAYER_NAME, _LAYER_TYPE, _LAYER_BLOBS = 1, 2, 7
_OLD_LAYER_NAME, _OLD_LAYER_BLOBS = 4, 6
_BLOB_DATA, _BLOB_SHAPE, _BLOB_DOUBLE_DATA, _SHAPE_DIM = 5, 7, 8, 1
_OLD_DIMENSIONS = (1, 2, 3, 4)
"""num, channels, height and width of blobs before Caffe had BlobShape."""

Blobs = dict[str, list[torch.Tensor]]
"""The blobs of each layer by its name, in Caffe's order: weights, then the bias."""


def read_blobs(path: Path) -> Blobs:
    """Return the blobs of a .caffemodel.

    Raises:
        UserFault: the file can't be read, or is no .caffemodel.
    """
    try:
        data = memoryview(path.read_bytes())
        return dict(layer for number, _, value in wire.fields(data)
                    if number in (_LAYERS, _OLD_LAYERS)
                    for layer in [_layer(value, old=number == _OLD_LAYERS)])  # fmt: skip
    except FileNotFoundError:
        raise UserFault(
            f"framework.arguments.weights names {path}, which does not exist",
            hint="give a path relative to the manifest's folder, or to DATA_DIR",
        ) from None
    except (OSError, ValueError) as error:
        raise UserFault(f"{path.name} is no .caffemodel: {error}") from None


def read_mean(path: Path) -> torch.Tensor:
    """Return the blob of a mean file, as Caffe's compute_image_mean writes it.

    Raises:
        UserFault: the file can't be read, or is none.
    """
    try:
        return _blob(memoryview(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise UserFault(f"{path.name} is no mean file of Caffe: {error}") from None


def _layer(value: wire.Value, *, old: bool) -> tuple[str, list[torch.Tensor]]:
    name_field, blob_field = (
        (_OLD_LAYER_NAME, _OLD_LAYER_BLOBS) if old else (_LAYER_NAME, _LAYER_BLOBS)
    )
    name, blobs = "", list[torch.Tensor]()
    for number, kind, inner in wire.fields(wire.message(value)):
        if number == name_field and kind == wire.BYTES:
            name = bytes(wire.message(inner)).decode()
        elif number == blob_field:
            blobs.append(_blob(wire.message(inner)))
    return name, blobs


def _blob(data: memoryview) -> torch.Tensor:
    shape: list[int] = []
    old: dict[int, int] = {}
    parts: list[np.ndarray] = []
    for number, _, value in wire.fields(data):
        if number == _BLOB_SHAPE:
            for inner, _, dims in wire.fields(wire.message(value)):
                shape += wire.varints(dims) if inner == _SHAPE_DIM else []
        elif number in _OLD_DIMENSIONS and isinstance(value, int):
            old[number] = value
        elif number in (_BLOB_DATA, _BLOB_DOUBLE_DATA):
            kind_of = "<f4" if number == _BLOB_DATA else "<f8"
            parts.append(np.frombuffer(wire.message(value), kind_of).astype(np.float32))
    values = np.concatenate(parts) if parts else np.zeros(0, np.float32)
    if not shape and old:
        shape = [old.get(n, 1) for n in _OLD_DIMENSIONS]
    if int(np.prod(shape or [len(values)])) != len(values):
        raise wire.Malformed(f"a blob of the shape {shape} has {len(values)} numbers")
    return torch.from_numpy(values.copy()).reshape(shape or [len(values)])


def to_bytes(name: str, layers: Mapping[str, tuple[str, Sequence[torch.Tensor]]]) -> bytes:
    """Return a net's weights as the content of a .caffemodel.

    Args:
        layers: The type and the blobs of each layer by its name.
    """
    out = [wire.block(_NAME, name.encode())]
    for layer, (kind, blobs) in layers.items():
        content = wire.block(_LAYER_NAME, layer.encode()) + wire.block(_LAYER_TYPE, kind.encode())
        content += b"".join(wire.block(_LAYER_BLOBS, _blob_bytes(blob)) for blob in blobs)
        out.append(wire.block(_LAYERS, content))
    return b"".join(out)


def _blob_bytes(blob: torch.Tensor) -> bytes:
    shape = b"".join(map(wire.varint, blob.shape))
    values = blob.detach().to("cpu", torch.float32).contiguous().numpy().astype("<f4").tobytes()
    return wire.block(_BLOB_DATA, values) + wire.block(_BLOB_SHAPE, wire.block(_SHAPE_DIM, shape))
