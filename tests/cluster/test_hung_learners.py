"""A learner that blocks for ever on the cluster: the attempt is ended, explained and retried."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from trainings import submit, wait_for_file, write_training

from dlctl import contract

TRAIN = """\
import os, threading
from pathlib import Path
import torch

class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 3000
    def __getitem__(self, index):
        return torch.ones(4) * (index % 7), torch.tensor(index % 2)

def wait_for_ever():
    threading.Event().wait()

class Net(torch.nn.Linear):
    steps = 0
    def forward(self, x):
        Net.steps += 1
        once = Path(os.environ["JOB_STATE_DIR"], "hung")
        if os.environ["RANK"] == "1" and Net.steps == 60 and not once.exists():
            once.touch()
            wait_for_ever()
        return super().forward(x)

def build(arguments):
    model = Net(4, 2)
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
        "loss": torch.nn.functional.cross_entropy,
        "train": Points(),
    }
"""


def hung_attempt(job: Path) -> tuple[int, dict[str, Any]]:
    """Return the attempt that hung: a loaded machine may lose one before, which is retried."""
    for n in (1, 2):
        verdict = json.loads(wait_for_file(job / contract.verdict_file(n)))
        if verdict["kind"] == "hung":
            break
        by_load = ("unknown", "scheduler", "node_lost")
        assert verdict["kind"] in by_load, json.dumps(verdict, indent=1)
    assert verdict["kind"] == "hung", json.dumps(verdict, indent=1)
    return n, verdict


def test_a_learner_that_blocks_is_named_and_the_attempt_retried(dlctl, cluster_site):
    folder = write_training(
        dlctl.cwd / "job", {"job": "train.py"}, {"train.py": TRAIN},
        learners=3, nodes=3, training={"batch_size": 30, "epochs": 1},
        checkpoint={"every": "20 steps"}, hang={"floor": "15s"}, retries=3,
    )  # fmt: skip
    training_id = submit(dlctl, cluster_site, folder)
    job = cluster_site.root / "jobs" / training_id
    n, hung = hung_attempt(job)
    node = "n2" if n == 1 else "n[234]"  # the attempt before may have lost a node
    assert re.search(rf"learner 1 on {node} was waited for, at train\.py:", hung["reason"]), hung
    assert "in wait_for_ever (the others are in the exchange)." in hung["reason"]
    assert (hung["action"]["kind"], hung["action"]["attempt"]) == ("retry", n + 1)
    after = json.loads(wait_for_file(job / contract.verdict_file(n + 1)))
    assert after["state"] == "COMPLETED", json.dumps(after, indent=1)
    stacks = [Path(job, contract.stacks_file(n, rank)).read_text() for rank in range(3)]
    assert "in wait_for_ever" in stacks[1]
    assert all("/learner/exchange/" in stacks[rank] for rank in (0, 2)), stacks


@pytest.mark.long
def test_a_learner_on_a_parameter_server_that_blocks_is_named_once_the_others_are_done(
    dlctl, cluster_site
):
    folder = write_training(
        dlctl.cwd / "job", {"job": "train.py"}, {"train.py": TRAIN},
        learners=2, nodes=2, training={"batch_size": 30, "epochs": 2},
        checkpoint={"every": "1 epoch"}, hang={"floor": "15s"},
        parameter_server={"solver": "downpour_sgd"}, memory="900MiB", retries=1,
    )  # fmt: skip
    training_id = submit(dlctl, cluster_site, folder)
    job = cluster_site.root / "jobs" / training_id
    first = json.loads(wait_for_file(job / contract.verdict_file(1), timeout_s=120))
    assert first["kind"] == "hung", first
    assert "learner 1 on n2 was waited for, at train.py:" in first["reason"], first
    second = json.loads(wait_for_file(job / contract.verdict_file(2)))
    assert second["state"] == "COMPLETED", json.dumps(second, indent=1)
