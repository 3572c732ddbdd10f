"""Caffe's data layers: an LMDB of Datums, and what transform_param makes of its images."""

from __future__ import annotations

import lmdb
import numpy as np
import pytest
import torch
from dlctl_framework_caffe.data import Augmented, dataset
from dlctl_framework_caffe.prototxt import read
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from dlctl.contract.ground import protobuf as wire
from learner.errors import UserFault

IMAGES = np.arange(2 * 1 * 4 * 5, dtype=np.uint8).reshape(2, 1, 4, 5)
"""Two images of one channel, 4 × 5 pixels, with the values 0 to 39."""


def datum():
    """The message Datum of caffe.proto, by protobuf itself."""
    file = descriptor_pb2.FileDescriptorProto(name="datum.proto", package="caffe")
    kinds = descriptor_pb2.FieldDescriptorProto
    message = file.message_type.add(name="Datum")
    for number, (name, kind) in enumerate([
        ("channels", kinds.TYPE_INT32), ("height", kinds.TYPE_INT32), ("width", kinds.TYPE_INT32),
        ("data", kinds.TYPE_BYTES), ("label", kinds.TYPE_INT32), ("float_data", kinds.TYPE_FLOAT),
        ("encoded", kinds.TYPE_BOOL),
    ], 1):  # fmt: skip
        repeated = name == "float_data"
        label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
        message.field.add(name=name, number=number, type=kind, label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("caffe.Datum"))


@pytest.fixture
def base(tmp_path):
    """An LMDB as Caffe's convert_imageset makes it; the second image has floats."""
    made = datum()
    first = made(channels=1, height=4, width=5, label=3, data=IMAGES[0].tobytes())
    second = made(channels=1, height=4, width=5, label=7, float_data=IMAGES[1].ravel().tolist())
    with lmdb.open(str(tmp_path / "base")) as written, written.begin(write=True) as change:
        change.put(b"00000000_a", first.SerializeToString())
        change.put(b"00000001_b", second.SerializeToString())
    return tmp_path


def samples(base, transform="", phase="TRAIN", backend="backend: LMDB"):
    path = base / "net.prototxt"
    path.write_text(
        'layer { name: "d" type: "Data" top: "data" top: "label" '
        f'data_param {{ source: "base" {backend} batch_size: 2 }} '
        f"transform_param {{ {transform} }} }}"
    )
    (layer,) = read(path).messages("layer")
    return dataset(layer, base, phase)[0]


def test_an_lmdb_of_caffe_is_read(base):
    images, labels = samples(base).tensors
    assert images.tolist() == IMAGES.astype(float).tolist()
    assert labels.tolist() == [3, 7]


@pytest.mark.parametrize("backend", ["", "backend: LEVELDB"])
def test_a_leveldb_is_refused(base, backend):
    """It is what a layer without a backend has."""
    with pytest.raises(UserFault, match="reads only LMDB"):
        samples(base, backend=backend)


def test_an_encoded_image_is_named(base):
    with lmdb.open(str(base / "base")) as written, written.begin(write=True) as change:
        change.put(b"00000002", datum()(data=b"\x89PNG", encoded=True).SerializeToString())
    with pytest.raises(UserFault, match="reads no encoded images"):
        samples(base)


def test_the_mean_goes_before_the_scale_and_the_crop(base):
    """Caffe: (pixel - mean at the same place) * scale; 6 is the pixel at row 1, column 1."""
    mean = np.arange(20, dtype="<f4").reshape(1, 1, 4, 5) / 2
    dims = b"".join(wire.varint(n << 3) + wire.varint(d) for n, d in enumerate((1, 1, 4, 5), 1))
    (base / "mean.binaryproto").write_bytes(dims + wire.block(5, mean.tobytes()))
    images, _ = samples(base, 'mean_file: "mean.binaryproto" scale: 2 crop_size: 2', "TEST").tensors
    assert images.shape == (2, 1, 2, 2)
    assert images[0, 0].tolist() == [[6.0, 7.0], [11.0, 12.0]]
    assert images[1, 0, 0, 0] == 2 * (26 - 3)
    values, _ = samples(base, "mean_value: 4 scale: 0.5").tensors
    assert values[0, 0, 0].tolist() == [-2, -1.5, -1, -0.5, 0]


def test_crops_and_mirrors_are_drawn_anew_for_each_reading(base):
    torch.manual_seed(1)
    found = samples(base, "crop_size: 3 mirror: true")
    assert isinstance(found, Augmented)
    image = IMAGES[0, 0]
    crops = [image[y : y + 3, x : x + 3] for y in range(2) for x in range(3)]
    possible = {str(c.tolist()) for c in crops} | {str(c[:, ::-1].tolist()) for c in crops}
    drawn = [str(found[0][0][0].int().tolist()) for _ in range(300)]
    assert set(drawn) == possible, "each of 6 places, mirrored or not"
    assert found[1][1] == 7
    state = torch.get_rng_state()
    again = [found[0][0].tolist() for _ in range(9)]
    torch.set_rng_state(state)
    assert [found[0][0].tolist() for _ in range(9)] == again, "a checkpoint keeps what comes next"
    torch.set_rng_state(state)
    assert found.example().shape == (1, 1, 3, 3)
    assert torch.equal(torch.get_rng_state(), state), "the shapes draw nothing"


@pytest.mark.parametrize(("transform", "said"), [
    ("crop_size: 5", r"crop_size is 5, and the images have the shape \[1, 4, 5\]"),
    ('mean_file: "m" mean_value: 3', "give mean_file or mean_value, not both"),
    ("force_gray: true", "'force_gray'"),
])  # fmt: skip
def test_what_it_can_not_do_to_images_is_named(base, transform, said):
    with pytest.raises(UserFault, match=said):
        samples(base, transform)
