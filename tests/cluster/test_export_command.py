"""`dlctl export`, on this machine and over SSH on a real Slurm."""

from __future__ import annotations

import hashlib
import warnings

import pytest
import torch
from trainings import ON_THE_CLUSTER, complete, write_training

PROGRAM = """\
import torch
print("the user's own words")

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.ReLU(),
            torch.nn.Dropout(0.5), torch.nn.Flatten(), torch.nn.Linear(32, 2))
    def forward(self, image):
        return self.body(image)

def build(arguments):
    print("building", "model")
    images = torch.rand(40, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    model = Net()
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loss": torch.nn.functional.cross_entropy,
        "train": torch.utils.data.TensorDataset(images, (images.mean((1, 2, 3)) > 0.5).long()),
    }
"""
TRAINING = {
    "learners": 1,
    "training": {"epochs": 2, "batch_size": 10, "seed": 1},
    "checkpoint": {"every": "4 steps", "keep": 2},
}


@pytest.fixture
def completed(dlctl, site):
    """A short training, completed; its id."""
    folder = write_training(
        dlctl.cwd, {"job": "train.py"}, {"train.py": PROGRAM}, name="it's 1", **TRAINING
    )
    return complete(dlctl, site, folder)


@ON_THE_CLUSTER
def test_a_training_is_exported_and_fetched(dlctl, site, completed):
    on_node = ["--on-node"] if site.is_cluster else []
    done = dlctl("export", completed, "--format", "torchscript", "--json", *on_node, ok=True)
    answer = done.json
    assert "the user's own words" in done.stderr, "as progress, not in the answer"
    assert answer["dynamic_batch"] and answer["largest_difference"] < 1e-5
    assert answer["input_shapes"] == [[4, 1, 6, 6]]
    file = dlctl.cwd / "results" / completed / "model.torchscript.pt"
    assert answer["file"] == str(file)
    assert hashlib.sha256(file.read_bytes()).hexdigest() == answer["sha256"]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
        server = torch.jit.load(str(file))
    assert server(torch.rand(3, 1, 6, 6)).shape == (3, 2)
    fetched = dlctl("fetch", "results", completed, "--json", ok=True).json
    assert {"model.torchscript.pt", "model.pt"} <= set(fetched["files"]), "it is in the index"
    state = torch.load(file.with_name("model.pt"), weights_only=True)
    for name, value in server.state_dict().items():
        assert torch.equal(value, state[name])
    asked = ("export", completed, "--format", "safetensors", "--checkpoint", "4")
    done = dlctl(*asked, "--output", "made here/weights", ok=True)
    assert done.stdout == "./made here/weights\n"
    from safetensors.torch import load_file

    earlier = load_file(dlctl.cwd / "made here" / "weights")
    assert earlier.keys() == state.keys()
    assert not torch.equal(earlier["body.5.weight"], state["body.5.weight"])
    assert [path.name for path in (dlctl.cwd / "made here").iterdir()] == ["weights"]
    absent = dlctl("export", completed, "--format", "onnx", "--checkpoint", "5")
    assert absent.exit_code == 9 and absent.stdout == ""
    assert "there is no checkpoint '5'" in absent.stderr and "there are: 8, 4" in absent.stderr
    assert "Traceback" not in absent.stderr
    assert dlctl("export", completed, "--format", "onxx").exit_code == 2


def test_a_program_of_the_users_own_exports_by_itself(dlctl, local_site):
    folder = write_training(dlctl.cwd, {"command": "true"}, learners=1)
    training_id = complete(dlctl, local_site, folder)
    done = dlctl("export", training_id, "--format", "onnx")
    assert done.exit_code == 9
    assert "from learner.export import export" in done.stderr
