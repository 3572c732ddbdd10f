"""What a user gets wrong ends in one sentence that names the cause, here and on the cluster."""

from __future__ import annotations

import pytest
from trainings import change_site, run, wait_for_state, write_training

TRAIN = """\
import torch
{line}

def build(arguments):
    model = torch.nn.Linear(2, 1)
    data = torch.utils.data.TensorDataset(torch.ones(8, 2), torch.ones(8, 1))
    return {{"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
             "loss": torch.nn.functional.mse_loss, "train": data}}
"""
ON_RANK_1 = '[ "$RANK" = 1 ] || exec sleep 60; '


def fails(dlctl, site, folder, kind, *options):
    """Run a training that must fail with this kind; return what `dlctl show --json` tells."""
    done, training_id = run(dlctl, site, folder, *options)
    assert done.exit_code == 10, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    shown = dlctl("show", training_id, "--json", ok=True).json
    assert shown["state"] == "FAILED"
    assert shown["hint"], shown["reason"]
    if verdict := shown["verdict"]:
        assert verdict["kind"] == kind, shown["reason"]
    assert "\n" not in shown["reason"].strip()
    assert shown["reason"] in done.stderr
    return shown


def text_of(dlctl, shown):
    """Return what `dlctl show` prints for people."""
    done = dlctl("show", shown["training_id"], "--all", ok=True)
    assert shown["reason"] in done.stdout
    assert shown["hint"] in done.stdout + done.stderr
    return done.stdout


@pytest.mark.first
def test_a_syntax_error_is_found_before_training(dlctl, cluster_site):
    files = {"train.py": TRAIN.format(line="x = (1,")}
    folder = write_training(dlctl.cwd, {"job": "train.py"}, files)
    shown = fails(dlctl, cluster_site, folder, "user_error")
    assert "train.py:2: SyntaxError" in shown["reason"]
    assert "submit again" in shown["hint"]
    assert shown["learners"] == []  # no learner was started


def test_an_import_error_on_one_rank_names_that_rank(dlctl, cluster_site):
    """On this machine: tests/mpi/test_supervisor_mpi.py."""
    line = "import os\nif os.environ['RANK'] == '1': import not_there_42"
    files = {"train.py": TRAIN.format(line=line)}
    folder = write_training(dlctl.cwd, {"job": "train.py"}, files, cpus=2, learners=2)
    shown = fails(dlctl, cluster_site, folder, "user_error")
    evidence = shown["verdict"]["evidence"]
    assert evidence["rank"] == 1
    hosts = {status["rank"]: status["host"] for status in shown["learners"]}
    assert evidence["host"] == hosts[1]
    assert hosts[0] != hosts[1]
    assert f"Learner 1 on {hosts[1]}" in shown["reason"]
    assert "No module named 'not_there_42'" in shown["reason"]
    assert "requirements" in shown["hint"]
    assert f"last lines of learner 1 on {hosts[1]}" in text_of(dlctl, shown)
    assert any("not_there_42" in words for words in evidence["last_lines"])


@pytest.mark.parametrize(("change", "said", "way"), [
    (("mse_loss,", "mse_loss and (lambda o, t: ((o - t) ** 2).sum()),"),
     "the loss is a sum over the batch's samples", 'reduction="mean"'),
    (("torch.nn.Linear(2, 1)",
      "torch.nn.Sequential(torch.nn.SyncBatchNorm(2), torch.nn.Linear(2, 1))"),
     "the model's layer 0 is a SyncBatchNorm", "GroupNorm"),
])  # fmt: skip
def test_what_several_learners_would_train_otherwise_is_refused(
    dlctl, cluster_site, change, said, way
):
    """Both were COMPLETED, with other weights than one learner's."""
    files = {"train.py": TRAIN.format(line="").replace(*change)}
    folder = write_training(dlctl.cwd, {"job": "train.py"}, files, learners=2)
    shown = fails(dlctl, cluster_site, folder, "user_error")
    assert said in shown["reason"] and way in shown["hint"]
    text_of(dlctl, shown)


@pytest.mark.first("1")
@pytest.mark.parametrize("learners", [1, 2])
def test_more_memory_than_asked_for(dlctl, cluster_site, learners):
    """A single learner takes the whole job with it, and no verdict is left."""
    code = "import time; data = bytearray(900 << 20); time.sleep(60)"
    command = "echo 'I need more'; " + (ON_RANK_1 if learners == 2 else "")
    folder = write_training(
        dlctl.cwd, {"command": f"{command} exec {cluster_site.python} -c '{code}'"},
        memory="200MiB", learners=learners,
    )  # fmt: skip
    shown = fails(dlctl, cluster_site, folder, "out_of_memory")
    assert "memory" in shown["reason"].lower()
    assert "--memory" in shown["hint"]
    text = text_of(dlctl, shown)
    assert "exceeded memory limit" in text or "I need more" in text


def test_a_python_without_what_the_node_needs(dlctl, cluster_site, xdg):
    changed = change_site(cluster_site, xdg.config, environment={"python": "/usr/bin/python3"})
    write_training(dlctl.cwd / "own", {"command": "true"}, learners=2)
    run(dlctl, changed, dlctl.cwd / "own", ok=True)  # it needs nothing but the standard library
    files = {"train.py": TRAIN.format(line="")}
    folder = write_training(dlctl.cwd, {"job": "train.py"}, files, learners=2)
    shown = fails(dlctl, changed, folder, "site")
    assert "'/usr/bin/python3' lacks numpy, torch, h5py, mpi4py." in shown["reason"]
    assert shown["hint"].startswith("Run: dlctl sites setup changed")
    # What it writes into the site's file; a plain `resume` still took the Python of before.
    change_site(changed, xdg.config, environment={"python": str(cluster_site.python)})
    dlctl("resume", shown["training_id"], ok=True)
    wait_for_state(dlctl, shown["training_id"], "COMPLETED")


def test_no_python_for_the_queue_of_this_machine(dlctl, local_site, xdg):
    """Here the queue itself needs it, and so nothing is submitted."""
    changed = change_site(local_site, xdg.config, environment={"python": "/opt/nowhere/python"})
    write_training(dlctl.cwd, {"command": "true"})
    done = dlctl("submit", "--site", changed.name, "manifest.yml")
    assert done.exit_code == 7
    assert "/opt/nowhere/python" in done.stderr
    assert "environment.python" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_module_that_was_not_sent_is_named_with_its_rule(dlctl, site):
    files = {
        "train.py": TRAIN.format(line="from data.loader import rows"),
        "data/loader.py": "rows = []\n", ".gitignore": "# big\ndata/\n",
    }  # fmt: skip
    folder = write_training(dlctl.cwd, {"job": "train.py"}, files)
    shown = fails(dlctl, site, folder, "user_error")
    assert "No module named 'data" in shown["reason"]
    assert shown["hint"].startswith("data")
    assert "was not sent with the folder: .gitignore:2 leaves it out" in shown["hint"]
