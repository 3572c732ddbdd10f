"""Exported models: each loads like its users load it, and a wrong one is never kept."""

import importlib
import warnings

import pytest
import torch
from node_job import Job
from torch import nn

from learner.errors import UserFault
from learner.export import FORMATS, export
from learner.export.__main__ import main


class Net(nn.Module):
    """A small CNN with layers that train and serve differently, tied weights and a hook."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Linear(4, 3)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, image):
        return self.head(self.body(image).mean((2, 3))) * self.scale


class Two(nn.Module):
    """Two inputs, and outputs by name, one of them of integers."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, words, weights):
        features = self.second(self.first((self.embed(words) * weights[..., None]).sum(1)))
        return {"features": features, "best": features.argmax(1)}


class Nested(nn.Module):
    def forward(self, x, *more):
        return x + 1, (more[0] * 2, {"last": more[1].sum(1)}, [x])


def trained(model, *inputs):
    """Return a model after a few steps, so that BatchNorm has statistics."""
    torch.manual_seed(0)
    model.train()
    for _ in range(3):
        model(*inputs)
    return model


IMAGES = torch.rand(4, 1, 6, 6)
WORDS = (torch.randint(0, 10, (4, 5)), torch.rand(4, 5))


@pytest.fixture
def net():
    return trained(Net(), IMAGES)


def serve(path, format, model):
    """Load a file as docs/export.md says; safetensors into a fresh model."""
    if format == "torchscript":
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
            return torch.jit.load(str(path))
    if format == "torch-export":
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*treespec", FutureWarning)
            return torch.export.load(str(path)).module()
    if format == "safetensors":
        load_file = importlib.import_module("safetensors.torch").load_file
        fresh = type(model)()
        fresh.load_state_dict(load_file(path))
        return fresh.eval()
    session = importlib.import_module("onnxruntime").InferenceSession(str(path))
    names = [value.name for value in session.get_inputs()]

    def run(*inputs):
        values = session.run(None, {n: v.numpy() for n, v in zip(names, inputs, strict=True)})
        found = {o.name: torch.as_tensor(v) for o, v in zip(session.get_outputs(), values)}  # noqa: B905
        return found if len(found) > 1 else next(iter(found.values()))

    return run


@pytest.mark.first("safetensors", "torch*")
@pytest.mark.parametrize("format", FORMATS)
def test_an_exported_file_matches_the_model_for_any_batch(net, format, tmp_path):
    before = {name: value.clone() for name, value in net.state_dict().items()}
    path = tmp_path / "made" / "model.x"
    done = export(net, IMAGES, path, format)
    assert done.path == str(path) and path.stat().st_size == done.size_bytes
    assert done.largest_difference < 1e-4 and done.dynamic_batch
    assert done.input_shapes == [[4, 1, 6, 6]]
    assert "a batch of 1" in done.checked
    assert [p.name for p in path.parent.iterdir()] == ["model.x"]
    assert net.training, "the model continues training"
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    server, net = serve(path, format, net), net.eval()
    for count in (1, 4, 9):
        fresh = torch.randn(count, 1, 6, 6)
        with torch.no_grad():
            assert torch.allclose(server(fresh), net(fresh), rtol=1e-4, atol=1e-5)


@pytest.mark.first("safetensors", "torch*")
@pytest.mark.parametrize("format", FORMATS)
def test_two_inputs_and_outputs_keep_their_names(format, tmp_path):
    model = Two()
    done = export(model, WORDS, tmp_path / "two", format)
    assert done.input_shapes == [[4, 5], [4, 5]]
    words, weights = torch.randint(0, 10, (3, 5)), torch.rand(3, 5)
    got = serve(tmp_path / "two", format, model)(words, weights)
    right = model.eval()(words, weights)
    assert torch.allclose(got["features"], right["features"], rtol=1e-4, atol=1e-5)
    assert torch.equal(got["best"], right["best"])
    if format == "onnx":
        assert list(got) == ["features", "best"]


@pytest.mark.parametrize("format", FORMATS)
def test_outputs_in_tuples_and_any_number_of_inputs_are_exported(format, tmp_path):
    done = export(Nested(), torch.rand(3, 3, 4).unbind(), tmp_path / "m", format)
    assert done.input_shapes == [[3, 4]] * 3
    inputs = torch.rand(3, 5, 4).unbind()
    got = serve(tmp_path / "m", format, Nested())(*inputs)
    if format == "onnx":
        assert list(got) == ["output_0", "output_1_0", "output_1_1_last", "output_1_2_0"]
        assert torch.allclose(got["output_1_1_last"], inputs[2].sum(1))
    else:
        assert torch.allclose(got[1][1]["last"], inputs[2].sum(1))


def test_wrappers_around_a_model_are_left_out(net, tmp_path):
    calls = []
    net.body.register_forward_hook(lambda *_: calls.append(1))
    net.body[0] = torch.compile(net.body[0], backend="eager")
    wrapped = nn.DataParallel(torch.compile(net, backend="eager"))
    export(wrapped, IMAGES, tmp_path / "m", "safetensors")
    assert isinstance(net.body[0], torch._dynamo.OptimizedModule), "the model stays as it was"
    load_file = importlib.import_module("safetensors.torch").load_file
    assert set(load_file(tmp_path / "m")) == set(Net().state_dict())
    count = len(calls)
    server = serve(tmp_path / "m", "safetensors", Net())
    server(IMAGES)
    assert len(calls) == count


def test_a_model_of_many_learners_needs_no_other_learner(net, tmp_path):
    dist = torch.distributed
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(net)
        wrapped(IMAGES).sum().backward()
        done = export(wrapped, IMAGES, tmp_path / "m", "torchscript")
    finally:
        dist.destroy_process_group()
    assert done.largest_difference < 1e-5
    server = serve(tmp_path / "m", "torchscript", net)
    assert server.state_dict().keys() == net.state_dict().keys()
    assert not any(parameter.requires_grad for parameter in server.parameters())


def test_weights_in_a_shared_window_are_written_alone(net, tmp_path):
    """A view into one large buffer, as `learner.exchange` has them, is written alone."""
    count = sum(p.numel() for p in net.parameters())
    window = torch.zeros(10_000_000)
    start = 0
    for parameter in net.parameters():
        view = window[start : start + parameter.numel()].view_as(parameter)
        view.copy_(parameter.detach())
        parameter.data = view
        start += parameter.numel()
    assert start == count
    for format in ("torchscript", "safetensors"):
        assert export(net, IMAGES, tmp_path / "m", format).size_bytes < 100_000


def test_weights_computed_by_a_hook_of_torch_are_kept(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model = nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 4)))
    with torch.no_grad():
        model[0].weight_g.mul_(3)  # an optimizer's step: `weight` is stale until the next forward
    example = torch.rand(3, 4)
    export(model, example, tmp_path / "m", "torchscript")
    with torch.no_grad():
        right = model(example)
    assert torch.allclose(serve(tmp_path / "m", "torchscript", model)(example), right)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


class Branch(nn.Module):
    """Branches on its input; because of the lambda, not even a script can express it."""

    def __init__(self):
        super().__init__()
        self.double = lambda x: x * 2

    def forward(self, x):
        return self.double(x) if x.sum() > 0 else x - 1


class ScriptBranch(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x * 2
        return x - 1


class HookedOutput(nn.Linear):
    def __init__(self):
        super().__init__(3, 3)
        self.register_forward_hook(lambda module, inputs, output: output + 1)


class Squeezed(nn.Linear):
    """Wrong for a single sample: a trace has no branch for it."""

    def __init__(self):
        super().__init__(3, 1)

    def forward(self, x):
        y = super().forward(x)
        return y.squeeze() if y.shape[0] == 1 else y


@pytest.mark.parametrize("format", FORMATS)
def test_a_model_that_counts_is_refused(format, tmp_path):
    with pytest.raises(UserFault, match="gives another output for the same input"):
        export(Counting(), torch.rand(3, 3), tmp_path / "m", format)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("format", "model", "what"),
    [
        ("torchscript", Branch, "with negated values, .*differs by"),
        ("torch-export", Branch, "can't be written as torch-export"),
        ("onnx", Branch, "can't be written as onnx"),
        ("torchscript", HookedOutput, "the model is not the same"),
        ("torchscript", Squeezed, "with a batch of 1.*float32.1, 1. and should be float32.."),
    ],
)
def test_a_wrong_export_is_noticed_and_not_kept(format, model, what, tmp_path, capsys):
    (tmp_path / "m").write_text("the export before")
    with pytest.raises(UserFault, match=what) as told:
        export(model(), torch.rand(3, 3) + 1, tmp_path / "m", format)
    assert told.value.hint
    assert [p.read_text() for p in tmp_path.iterdir()] == ["the export before"]


def test_control_flow_becomes_a_script(tmp_path):
    done = export(ScriptBranch(), torch.rand(3, 3), tmp_path / "m", "torchscript")
    assert "negated values" in done.checked and not done.notes
    server = serve(tmp_path / "m", "torchscript", ScriptBranch())
    assert torch.equal(server(torch.full((2, 2), -1.0)), torch.full((2, 2), -2.0))


def test_a_harmless_constant_in_a_trace_is_noted(tmp_path):
    class Checked(Branch):
        def forward(self, x):
            return self.double(x) if x.abs().sum() >= 0 else x

    done = export(Checked(), torch.rand(3, 3), tmp_path / "m", "torchscript")
    assert any("one way through the model" in note for note in done.notes), done.notes
    assert any("test_export.py, line" in note for note in done.notes)


def test_a_model_of_one_batch_size_is_exported_for_it(tmp_path):
    class Fixed(nn.Module):
        def forward(self, x):
            return x.reshape(4, 2, -1).sum(1)

    for format in ("torchscript", "onnx"):
        done = export(Fixed(), torch.rand(4, 6), tmp_path / "m", format)
        assert not done.dynamic_batch
        assert "batches of 4 only" in done.notes[-1]
    done = export(Squeezed(), torch.rand(3, 3), tmp_path / "m", dynamic_batch=False)
    assert "a batch of 1" not in done.checked


def test_half_precision_has_its_tolerance(tmp_path):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).to(torch.bfloat16)
    for format in ("torchscript", "torch-export", "safetensors"):
        export(model, torch.rand(3, 8, dtype=torch.bfloat16), tmp_path / format, format)


@pytest.mark.parametrize(
    ("format", "package"),
    [("onnx", "onnxscript"), ("onnx", "onnxruntime"), ("safetensors", "safetensors")],
)
def test_a_missing_package_is_named(format, package, net, tmp_path, monkeypatch):
    real = importlib.import_module

    def lacking(name, *more):
        if name == package:
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(importlib, "import_module", lacking)
    with pytest.raises(UserFault, match=f"the format {format} needs {package}, which") as told:
        export(net, IMAGES, tmp_path / "m", format)
    assert "-m pip install" in told.value.hint and package in told.value.hint


def test_the_export_of_a_command_asks_for_no_package(tmp_path, monkeypatch):
    """pip would have changed nothing: dlctl can't build a model of a program of its own."""
    job = Job(tmp_path, "true")
    monkeypatch.setattr("learner.export.formats._is_there", lambda _: False)
    with pytest.raises(UserFault, match="ran its own command") as told:
        main([str(job.dir), "--format", "onnx"])
    assert "pip" not in told.value.hint


def test_mistakes_are_one_sentence(net, tmp_path):
    with pytest.raises(UserFault, match="there is no format 'onxx'") as told:
        export(net, IMAGES, tmp_path / "m", "onxx")
    assert told.value.hint == "did you mean onnx?"
    with pytest.raises(UserFault, match="can't run on the example inputs"):
        export(net, torch.rand(4, 7), tmp_path / "m")
    with pytest.raises(UserFault, match="has no weights yet"):
        export(nn.LazyLinear(3), torch.rand(4, 7), tmp_path / "m")
    (tmp_path / "file").touch()
    with pytest.raises(UserFault, match="can't be written"):
        export(net, IMAGES, tmp_path / "file" / "m")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_leaves_nothing(net, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("learner.export.write.os.fsync", full)
    with pytest.raises(UserFault, match="m can't be written: No space left"):
        export(net, IMAGES, tmp_path / "m")
    assert not list(tmp_path.iterdir())
