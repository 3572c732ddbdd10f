"""Which nodes a verdict has the whole site avoid."""

from __future__ import annotations

import dataclasses
import json

import pytest
from node_job import Job

from dlctl import contract
from dlctl.contract import Evidence, State, Verdict
from learner.lifecycle.next_attempt import remember_bad_nodes


@pytest.mark.parametrize(
    ("verdict", "hosts"),
    [
        ({"kind": "site", "bad_hosts": ["n1", "n2"]}, ["n1", "n2"]),
        ({"kind": "gpu_error", "evidence": Evidence("learner", 1, "n3")}, ["n3"]),
        ({"kind": "gpu_error", "evidence": Evidence()}, []),
        ({"kind": "node_lost", "evidence": Evidence("learner", 1, "n3")}, []),
        ({"kind": "user_error", "evidence": Evidence("learner", 1, "n3")}, []),
        ({"kind": "site", "bad_hosts": ["../jobs"]}, []),
    ],
)
def test_a_file_is_written_for_each_node_to_blame(tmp_path, verdict, hosts):
    plan = Job(tmp_path, "true").plan
    plan = dataclasses.replace(plan, batch=contract.Batch("slurm"))
    found = Verdict(2, "7", State.FAILED, "It is dead.", **verdict)
    remember_bad_nodes(plan, found)
    files = sorted(tmp_path.glob(f"{contract.NODES}/*"))
    assert [file.stem for file in files] == hosts
    for file in files:
        node = json.loads(file.read_text())
        assert (node["reason"], node["attempt"]) == ("It is dead.", 2)
        assert node["expires_at"] - node["seen_at"] == contract.BAD_NODE_S


def test_a_machine_without_slurm_avoids_nothing(tmp_path):
    plan = Job(tmp_path, "true").plan
    found = Verdict(1, "7", State.FAILED, "It is dead.", kind="site", bad_hosts=["n1"])
    remember_bad_nodes(plan, found)
    assert not (tmp_path / contract.NODES).exists()
