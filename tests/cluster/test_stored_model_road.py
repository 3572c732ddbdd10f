"""A model's whole way, on this machine and on a real Slurm: trained, stored, used, deleted."""

from __future__ import annotations

import json

import pytest
import torch
from trainings import COUNTER, ON_THE_CLUSTER, halt, run, submit, write_training
from waiting import wait_until

from dlctl import contract

MANIFEST = """\
name: line
memory: 768MiB
time: 5m
framework: {name: pytorch, job: train.py, arguments: {lr: 0.05}}
training: {epochs: 3, batch_size: 64, log_every_steps: 1}
"""
TRAIN = """\
import torch

def build(arguments):
    inputs = torch.linspace(-1, 1, 64).reshape(-1, 1)
    model = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(model.weight, 0.0)
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=arguments["lr"]),
        "loss": torch.nn.functional.mse_loss,
        "train": torch.utils.data.TensorDataset(inputs, 3 * inputs + 1),
    }
"""
"""One batch an epoch, so the first loss is that of the weights with which a training begins."""


@pytest.fixture
def line(dlctl):
    (dlctl.cwd / "train.py").write_text(TRAIN)
    (dlctl.cwd / "manifest.yml").write_text(MANIFEST)
    return dlctl.cwd


def losses(site, training_id):
    """Return the loss of each step, each before the step changes the weights."""
    file = site.job_dir(training_id) / contract.metrics_file(1, 0)
    found = [json.loads(text) for text in file.read_text().splitlines()]
    return [each["loss"] for each in found if "loss" in each]


def loss_of(weights):
    """Return the loss of stored weights on the data of `TRAIN`."""
    state = torch.load(weights, weights_only=True)
    inputs = torch.linspace(-1, 1, 64).reshape(-1, 1)
    outputs = torch.nn.functional.linear(inputs, state["weight"], state["bias"])
    return torch.nn.functional.mse_loss(outputs, 3 * inputs + 1).item()


@ON_THE_CLUSTER
def test_the_whole_way_of_a_model(dlctl, site, line):
    done, first = run(dlctl, site, line, ok=True)
    made = dlctl("models", "create", "--from", first, "--name", "line", "--alias", "best",
                 "--json", ok=True).json  # fmt: skip
    model = made["model_id"]
    assert (made["version"], made["training_id"], made["metrics"].keys()) == (1, first, {"loss"})
    assert {(f["path"], f["part"]) for f in made["files"]} >= {
        ("train.py", "code"), ("model.pt", "result"),
    }  # fmt: skip
    assert f"stored as      {model}@1" in dlctl("show", first, "--all", ok=True).stdout

    # Its code and its weights, with a rate of 0: each loss is that of the stored weights.
    done, second = run(
        dlctl, site, dlctl.cwd, "--set", "framework.arguments.lr=0",
        "--set", f"framework.arguments.weights=model:{model}@best",
    )  # fmt: skip
    assert done.exit_code == 0, done
    # The alias moves; the training stays with what it had.
    dlctl("models", "update", model, "--from", second, "--alias", "best", ok=True)
    shown = dlctl("show", second, "--json", ok=True).json
    assert shown["plan"]["weights"]["model"] == f"{model}@1"
    weights = site.job_dir(second) / shown["plan"]["weights"]["file"]
    assert weights.stat().st_mode & 0o222 == 0
    went, again = losses(site, first), losses(site, second)
    assert again[0] == again[-1] < went[-1] < went[0]
    assert again[0] == pytest.approx(loss_of(weights), rel=1e-5)

    done = dlctl("submit", "--model", f"{model}@1", "--site", site.name, "--follow",
                 "--set", "training.epochs=1", cwd=dlctl.cwd.parent)  # fmt: skip
    assert done.exit_code == 0, done
    third = done.stdout.split("\n", 1)[0]
    assert losses(site, third) == went[:1], "the same code from the same beginning"
    assert f"{model}@1" in dlctl("show", third, "--all", ok=True).stdout

    differs = dlctl("models", "diff", f"{model}@1", f"{model}@2", "--json", ok=True).json
    assert "model.pt" not in [f["path"] for f in differs["files"]], "a rate of 0 changes no weight"
    dlctl("models", "pull", f"{model}@1", "pulled", ok=True)
    assert (dlctl.cwd / "pulled/train.py").read_text() == TRAIN
    assert (dlctl.cwd / "pulled/trained/model.pt").read_bytes() == weights.read_bytes()

    refused = dlctl("models", "delete", f"{model}@1", "--yes")
    assert refused.exit_code == 11
    assert f"{model}@2 was made from it" in refused.stderr
    dlctl("models", "delete", model, "--yes", ok=True)
    removed = dlctl("models", "gc", "--site", site.name, "--older-than", "0s", "--json", ok=True)
    assert removed.json["size_bytes"] >= weights.stat().st_size
    assert not list((site.root / contract.MODEL_BLOBS).iterdir())
    gone = dlctl("submit", "--model", model, "--site", site.name)
    assert (gone.exit_code, gone.stderr.count("error:")) == (8, 1)


def test_weights_that_are_no_longer_what_was_stored_end_the_job_before_it_trains(
    dlctl, local_site, tmp_path
):
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "net.pt").write_bytes(b"some weights")
    model = dlctl("models", "create", folder, "--name", "net", ok=True).stdout.strip()
    (dlctl.cwd / "manifest.yml").write_text(
        "name: own\nframework:\n  name: own\n  command: 'cat \"$WEIGHTS_FILE\"'\n"
        f"  arguments: {{weights: 'model:{model}'}}\n"
    )
    [blob] = (local_site.root / contract.MODEL_BLOBS).iterdir()
    blob.chmod(0o600)
    blob.write_bytes(b"wrong weight")
    done, second = run(dlctl, local_site, dlctl.cwd)
    assert done.exit_code == 10
    assert f"net.pt of the model {model} is not what was stored: its SHA-256 differs" in done.stderr
    assert "wrong weight" not in done.stdout
    dlctl("models", "update", model, folder, ok=True)
    resumed = dlctl("resume", second, "--follow")
    assert (resumed.exit_code, "some weights" in resumed.stdout) == (0, True), resumed


def test_a_halted_training_without_results_says_what_brings_some(dlctl, local_site):
    command = {"command": "python count.py 1000"}
    folder = write_training(dlctl.cwd, command, {"count.py": COUNTER})
    training_id = submit(dlctl, local_site, folder)
    checkpoints = local_site.job_dir(training_id) / "checkpoints"
    wait_until(lambda: checkpoints.is_dir() and any(checkpoints.iterdir()))
    halt(dlctl, training_id)
    refused = dlctl("models", "create", "--from", training_id)
    assert refused.exit_code == 9
    assert f"{training_id} (HALTED) has no results" in refused.stderr
    assert f"dlctl resume {training_id}" in refused.stderr
    assert "models" not in [path.name for path in local_site.root.iterdir()]
