"""Caffe's nets: layers, shapes, weights in .caffemodel, and what the built-in loop gets."""

import shutil
from dataclasses import replace

import pytest
import torch
from dlctl_framework_caffe.net import CaffeNet, read_net
from dlctl_framework_caffe.program import build, planned
from dlctl_framework_caffe.weights import read_blobs, to_bytes
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from repository import REPOSITORY
from scheduler_plan import make_plan

from dlctl.contract import CheckpointPolicy
from dlctl.contract.ground import protobuf as wire
from learner.errors import UserFault

EXAMPLE = REPOSITORY / "examples/frameworks"
SOLVER = "caffe/lenet_solver.prototxt"
DATA = """layer { name: "d" type: "Input" top: "data" top: "label" }"""
LOSS = """layer { name: "l" type: "SoftmaxWithLoss" bottom: "%s" bottom: "label" top: "loss" }"""


def net(tmp_path, layers, last, example=None):
    path = tmp_path / "net.prototxt"
    path.write_text("\n".join(['name: "small"', DATA, *layers, LOSS % last]))
    image = torch.zeros(1, 3, 13, 13) if example is None else example
    return read_net(path, path, lambda *_: image)


def layer(kind, bottom, top, settings=""):
    return f'layer {{ name: "{top}" type: "{kind}" bottom: "{bottom}" top: "{top}" {settings} }}'


def test_an_alexnet_like_net_has_caffes_shapes(tmp_path):
    made = net(tmp_path, [
        layer("Convolution", "data", "conv1",
              "convolution_param { num_output: 8 kernel_size: 3 stride: 2 pad: 1 }"),
        layer("ReLU", "conv1", "conv1b"),
        layer("LRN", "conv1b", "norm1", "lrn_param { local_size: 3 alpha: 0.1 beta: 0.75 }"),
        # 7 → ceil((7 - 3) / 2) + 1 = 3, and 6 → 3 where other frameworks make 2
        layer("Pooling", "norm1", "pool1", "pooling_param { pool: MAX kernel_size: 2 stride: 2 }"),
        layer("Convolution", "pool1", "conv2",
              "convolution_param { num_output: 4 kernel_h: 3 kernel_w: 1 group: 2 pad_h: 1 }"),
        layer("BatchNorm", "conv2", "bn"),
        layer("Scale", "bn", "sc", "scale_param { bias_term: true }"),
        layer("Pooling", "conv2", "ave", "pooling_param { pool: AVE global_pooling: true }"),
        'layer { name: "cat" type: "Concat" bottom: "conv2" bottom: "sc" top: "cat" }',
        'layer { name: "sum" type: "Eltwise" bottom: "conv2" bottom: "sc" top: "sum" }',
        layer("Dropout", "cat", "drop", "dropout_param { dropout_ratio: 0.2 }"),
        layer("InnerProduct", "drop", "ip", "inner_product_param { num_output: 10 }"),
    ], "ip")  # fmt: skip
    shapes = {name: list(b.shape) for name, b in _shown(made, torch.randn(2, 3, 13, 13)).items()}
    assert shapes["conv1"] == [2, 8, 7, 7]
    assert shapes["pool1"] == [2, 8, 4, 4]
    assert (shapes["conv2"], shapes["cat"]) == ([2, 4, 4, 4], [2, 8, 4, 4])
    assert (shapes["ave"], shapes["ip"]) == ([2, 4, 1, 1], [2, 10])


def _shown(made, images):
    """Every blob of the TRAIN graph."""
    graph = made.graphs["TRAIN"]
    blobs = dict(zip(graph.inputs, [images], strict=True))
    for step in graph.steps:
        top = made.layers[made.keys[step.layer]](*[blobs[b] for b in step.bottoms])
        blobs.update(zip(step.tops, [top], strict=True))
    return blobs


@pytest.mark.parametrize(("layers", "said"), [
    ([layer("Crop", "data", "x")], "'Crop' is not in dlctl's small caffe"),
    ([layer("ReLU", "nothing", "x")], "uses 'nothing', which no layer before it makes"),
    ([layer("InnerProduct", "data", "x")], "needs num_output"),
    ([layer("Convolution", "data", "x", "convolution_param { num_output: 2 kernel_size: 3 "
            "force_nd_im2col: true }")], "'force_nd_im2col', which dlctl's small caffe does not"),
])  # fmt: skip
def test_what_a_net_can_not_have_is_named_with_its_line(tmp_path, layers, said):
    with pytest.raises(UserFault, match=said) as caught:
        net(tmp_path, layers, "x")
    assert caught.value.message.startswith("net.prototxt:3:")


# Weights -----------------------------------------------------------------------------------------


def _messages():
    """The published messages of caffe.proto that a .caffemodel of Caffe 1.0 consists of."""
    file = descriptor_pb2.FileDescriptorProto(name="caffe.proto", package="caffe")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in {
        "BlobShape": [("dim", 1, kinds.TYPE_INT64, True, True, "")],
        "BlobProto": [("shape", 7, kinds.TYPE_MESSAGE, False, False, ".caffe.BlobShape"),
                      ("data", 5, kinds.TYPE_FLOAT, True, True, "")],
        "LayerParameter": [("name", 1, kinds.TYPE_STRING, False, False, ""),
                           ("type", 2, kinds.TYPE_STRING, False, False, ""),
                           ("blobs", 7, kinds.TYPE_MESSAGE, True, False, ".caffe.BlobProto")],
        "NetParameter": [("name", 1, kinds.TYPE_STRING, False, False, ""),
                         ("layer", 100, kinds.TYPE_MESSAGE, True, False, ".caffe.LayerParameter")],
    }.items():  # fmt: skip
        message = file.message_type.add(name=name)
        for field, number, kind, repeated, packed, of in fields:
            label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            added = message.field.add(
                name=field, number=number, type=kind, label=label, type_name=of or None
            )
            if packed:
                added.options.packed = True
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindMessageTypeByName("caffe.NetParameter")
    return message_factory.GetMessageClass(found)


def test_protobuf_itself_reads_the_caffemodel_that_dlctl_writes():
    weight, bias = torch.arange(6, dtype=torch.float32).reshape(2, 3), torch.tensor([0.5, -1.0])
    message = _messages()()
    message.ParseFromString(to_bytes("LeNet", {"ip1": ("InnerProduct", [weight, bias])}))
    (found,) = message.layer
    assert (message.name, found.name, found.type) == ("LeNet", "ip1", "InnerProduct")
    assert list(found.blobs[0].shape.dim) == [2, 3]
    assert list(found.blobs[0].data) == weight.flatten().tolist()
    assert list(found.blobs[1].data) == [0.5, -1.0]


def test_dlctl_reads_the_caffemodel_that_protobuf_writes(tmp_path):
    message = _messages()(name="theirs")
    blob = message.layer.add(name="conv1", type="Convolution").blobs.add()
    blob.shape.dim.extend([300, 1, 1, 1])
    blob.data.extend(n / 2 for n in range(300))
    (tmp_path / "a.caffemodel").write_bytes(message.SerializeToString())
    (read,) = read_blobs(tmp_path / "a.caffemodel")["conv1"]
    assert read.shape == (300, 1, 1, 1)
    assert read.flatten().tolist() == [n / 2 for n in range(300)]


def test_blobs_of_before_caffe_1_have_four_dimensions(tmp_path):
    values = wire.block(5, torch.ones(6).numpy().tobytes())
    dims = b"".join(wire.varint(n << 3) + wire.varint(d) for n, d in enumerate((1, 1, 2, 3), 1))
    old = wire.block(4, b"ip") + wire.block(6, dims + values)
    (tmp_path / "old.caffemodel").write_bytes(wire.block(2, old))
    (blob,) = read_blobs(tmp_path / "old.caffemodel")["ip"]
    assert blob.shape == (1, 1, 2, 3)


@pytest.mark.parametrize("size", [1, 7, 40])
def test_a_file_that_is_cut_off_is_no_caffemodel(tmp_path, size):
    content = to_bytes("n", {"ip": ("InnerProduct", [torch.ones(20)])})
    (tmp_path / "a.caffemodel").write_bytes(content[:size])
    with pytest.raises(UserFault, match=r"a\.caffemodel is no \.caffemodel"):
        read_blobs(tmp_path / "a.caffemodel")


def test_weights_go_to_the_layers_of_the_same_name(tmp_path):
    product = layer("InnerProduct", "data", "ip", "inner_product_param { num_output: 2 }")
    made = net(tmp_path, [product], "ip")
    weights = [torch.ones(2, 3 * 13 * 13), torch.tensor([1.0, 2.0])]
    assert made.take({"ip": weights, "other": []}, "w") == []
    assert torch.equal(made.layers["ip"].bias, weights[1])
    with pytest.raises(
        UserFault, match="w has weights for none of the net.s 1 layers: the layer ip"
    ):
        made.take({"other": weights}, "w")
    with pytest.raises(UserFault, match="the layer ip has blobs of the shapes"):
        made.take({"ip": [torch.ones(2, 2), weights[1]]}, "w")


def test_layers_with_the_same_param_name_have_one_weight(tmp_path):
    """Two products with W, at first 1, and rates 1 and 1: y = W (W x), dy/dW = 2 W x."""
    shared = 'param { name: "w" lr_mult: 2 } inner_product_param { num_output: 1 bias_term: false }'
    made = net(tmp_path, [
        layer("InnerProduct", "data", "a", shared), layer("InnerProduct", "a", "b", shared),
    ], "b", torch.zeros(1, 1))  # fmt: skip
    (only,) = list(made.parameters())
    assert [(g["params"][0] is only, g["lr_mult"]) for g in made.groups()] == [(True, 2.0)]
    with torch.no_grad():
        only.fill_(3.0)
    output = made(torch.tensor([[5.0]]))["b"]
    output.sum().backward()
    assert (output.item(), only.grad.item()) == (45.0, 30.0)
    blobs = _messages()()
    blobs.ParseFromString(made.caffemodel())
    assert [list(found.blobs[0].data) for found in blobs.layer] == [[3.0], [3.0]]


@pytest.mark.parametrize(("second", "said"), [
    ('param { name: "w" } inner_product_param { num_output: 2 bias_term: false }',
     r"'w' has the shape \[2, 1\], in the layer 'a' \[1, 1\]"),
    ('param {} param { name: "w" } inner_product_param { num_output: 1 bias_term: false }',
     "has no blob 1 that could be 'w'"),
])  # fmt: skip
def test_what_can_not_be_shared_is_named(tmp_path, second, said):
    first = 'param { name: "w" } inner_product_param { num_output: 1 bias_term: false }'
    layers = [layer("InnerProduct", "data", "a", first), layer("InnerProduct", "a", "b", second)]
    with pytest.raises(UserFault, match=said):
        net(tmp_path, layers, "b", torch.zeros(1, 1))


# The whole example -------------------------------------------------------------------------------


@pytest.fixture
def example(tmp_path):
    shutil.copytree(EXAMPLE / "caffe", tmp_path / "caffe")
    return tmp_path


def example_plan():
    plan = make_plan(learners=2)
    framework = replace(plan.framework, job=SOLVER)
    return replace(plan, framework=framework, checkpoint=CheckpointPolicy(every_epochs=1))


def test_the_solver_says_how_long_and_in_which_batches(example):
    plan = example_plan()
    said = planned(plan, example)
    assert (said.training.steps, said.training.batch_size) == (300, 64)
    assert said.training.epochs == 14  # of 23 batches: 1437 samples
    assert said.training.validate_every_epochs == 4
    assert (said.checkpoint.every_epochs, said.checkpoint.every_steps) == (None, 100)
    asked = CheckpointPolicy(every_epochs=2)
    assert planned(replace(plan, checkpoint=asked), example).checkpoint == asked


def test_a_step_has_the_samples_of_iter_size_batches(example):
    """The mean gradient of one large batch is that of its parts, which Caffe adds up."""
    with (example / SOLVER).open("a") as solver:
        solver.write("\niter_size: 4\n")
    said = planned(example_plan(), example).training
    assert (said.batch_size, said.steps) == (4 * 64, 300)
    assert said.epochs == 50  # of 6 batches


def test_lenet_learns_the_digits(example):
    """The example's net and data, with a plain loop around it."""
    torch.manual_seed(1)
    torch.set_num_threads(1)
    parts = build(example_plan(), example)
    assert isinstance(parts["model"], CaffeNet)
    images, labels = parts["train"].tensors
    assert (images.shape, images.max()) == ((1437, 1, 8, 8), 1.0)
    for _ in range(5):
        for batch in torch.randperm(len(images)).split(64):
            loss = parts["loss"](parts["model"](images[batch]), labels[batch])
            parts["optimizer"].zero_grad()
            loss.backward()
            parts["optimizer"].step()
    parts["model"].eval()
    test_images, test_labels = parts["validation"].tensors
    accuracy = parts["metrics"]["accuracy"](parts["model"](test_images), test_labels)
    assert accuracy > 0.85


def test_a_source_that_is_missing_is_named(example):
    (example / "caffe/digits_train.h5").unlink()
    with pytest.raises(UserFault, match=r"no source 'caffe/digits_train\.h5' in the submitted"):
        build(example_plan(), example)
