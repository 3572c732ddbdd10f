"""FfDL's `evaluation_metrics` of its three types, each on a real small program on the cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from repository import REPOSITORY
from trainings import submit, wait_for_file, write_training

from dlctl import contract
from dlctl.contract.metrics import Source, parse_line

EVENTS = """\
import os, sys
from event_files import beginning, event, scalar
for group in ("train", "test"):
    folder = os.path.join(os.environ["JOB_STATE_DIR"], "logs", "tb", group)
    os.makedirs(folder)
    with open(os.path.join(folder, "events.out.tfevents.1.n1"), "wb") as file:
        file.write(beginning())
        for step in range(3):
            file.write(event(step, scalar("loss", 0.5 ** step)))
"""
LOG = """\
for step in range(3):
    print(f"I0101 00:00:0{step}.000000 solver.cpp:1] Iteration {step} (1 iter/s)")
    print(f"I0101 00:00:0{step}.000000 solver.cpp:2] Train net output #0: loss = {0.5 ** step}")
    print(f"I0101 00:00:0{step}.000000 sgd.cpp:3] Iteration {step}, lr = 0.01")
"""
GROUPS = {
    "train": {
        "regex": (
            "%{GLOG_STAMP:stamp}.*Iteration %{INT:step} .*Train net.* loss = %{FLOAT:loss}\n"
            ".*lr = %{FLOAT:lr}"
        ),
        "meta": {"time": "$stamp"},
        "scalars": {
            "loss": {"type": "FLOAT", "value": "$loss"},
            "lr": {"type": "FLOAT", "value": "$lr"},
        },
        "etimes": {"iteration": {"type": "INT", "value": "$step"}},
    }
}
RECORDS = """\
import json, os
with open(os.path.join(os.environ["LOG_DIR"], "evaluation-metrics.txt"), "w") as file:
    for step in range(3):
        file.write(json.dumps({
            "meta": {"training_id": "t", "time": 1700000000000 + step, "rindex": step + 1},
            "grouplabel": "test",
            "etimes": {"iteration": {"type": 2, "value": str(step)}},
            "values": {"loss": {"type": 3, "value": str(0.5 ** step)}},
        }) + "\\n")
"""


def lines_of(job, source, rank=0):
    path = job / contract.metrics_file(1, rank, source)
    found = [parse_line(text) for text in path.read_text().splitlines()]
    assert None not in found
    return found


@pytest.mark.cluster
def test_ffdls_three_types_become_lines_of_metrics(dlctl, cluster_site, wait_until):
    support = (REPOSITORY / "tests/support/event_files.py").read_text()
    asked = {
        "tensorboard": ({"type": "tensorboard", "in": "$JOB_STATE_DIR/logs/tb"}, EVENTS),
        "regex": ({"type": "regex_extractor", "linelookahead": 4, "groups": GROUPS}, LOG),
        "file": ({"type": "file"}, RECORDS),
    }
    jobs = {}
    for name, (section, program) in asked.items():
        folder = write_training(
            dlctl.cwd / name, {"command": "python3 train.py"},
            {"train.py": program, "event_files.py": support},
            memory="256MiB", evaluation_metrics=section,
        )  # fmt: skip
        jobs[name] = cluster_site.root / "jobs" / submit(dlctl, cluster_site, folder)
    for name, job in jobs.items():
        verdict = json.loads(wait_for_file(wait_until, job / contract.verdict_file(1)))
        assert verdict["state"] == "COMPLETED", (name, verdict)
        log = Path(job / contract.learner_log(1, 0)).read_text()
        assert "dlctl: WARNING" not in log, log
    losses = [(0, 1.0), (1, 0.5), (2, 0.25)]
    found = {name: lines_of(job, Source.LOG) for name, job in jobs.items()}
    for name, groups in (("tensorboard", ["test", "train"]), ("regex", ["train"]),
                         ("file", ["test"])):  # fmt: skip
        for group in groups:
            of_group = [line for line in found[name] if line.group == group]
            assert [(line.step, line.values["loss"]) for line in of_group] == losses, name
    assert all(line.values["lr"] == 0.01 for line in found["regex"])
    assert found["file"][0].time == 1700000000.0
