"""A node with a dead GPU, as in the paper's colloquium: named, avoided and remembered."""

from __future__ import annotations

import json

import pytest
from hints import commands_in
from trainings import change_site, submit, wait_for_file, write_training

from dlctl import contract

DEAD = """\
#!/bin/sh
echo 'Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.' >&2
exit 15
"""


TOOLS = "/tmp/gpu-tools"
"""On the disk of one node."""


@pytest.fixture
def dead_gpu(request, cluster):
    """Let a GPU of a node be dead: Slurm does not know. Return the node's name."""
    node = request.param
    cluster.user("mkdir", "-p", TOOLS, node=node)
    cluster.user("sh", "-c", f"cat >{TOOLS}/nvidia-smi <<'end'\n{DEAD}end", node=node)
    cluster.user("chmod", "755", f"{TOOLS}/nvidia-smi", node=node)
    yield f"n{node}"
    cluster.user("rm", "-rf", TOOLS, node=node)


@pytest.fixture
def gpu_site(cluster_site, xdg):
    """The cluster, whose nodes have nvidia-smi where a test has put it."""
    return change_site(cluster_site, xdg.config, environment={"setup": [f"PATH={TOOLS}:$PATH"]})


@pytest.mark.parametrize("dead_gpu", [1], indirect=True)
def test_a_node_with_a_dead_gpu_is_named_avoided_and_remembered(dlctl, gpu_site, dead_gpu):
    site = gpu_site
    folder = write_training(
        dlctl.cwd / "job", {"command": "echo trained on $(hostname)"}, learners=2, nodes=2, gpus=1
    )
    training_id = submit(dlctl, site, folder)
    job = site.root / "jobs" / training_id
    first = json.loads(wait_for_file(job / contract.verdict_file(1)))
    assert (first["kind"], first["bad_hosts"]) == ("gpu_error", [dead_gpu]), first
    assert (
        f"The node {dead_gpu} has a GPU that does not answer (nvidia-smi: Unable to"
        in first["reason"]
    )
    assert first["action"]["exclude"] == [dead_gpu]
    second = json.loads(wait_for_file(job / contract.verdict_file(2)))
    assert second["state"] == "COMPLETED", second
    reports = [
        json.loads((job / contract.preflight_file(2, rank)).read_text()) for rank in range(2)
    ]
    assert dead_gpu not in {report["node"] for report in reports}
    assert sorted(reports[0]["reached"]) == [1]

    # Another training avoids the node until somebody forgets it.
    command, _ = commands_in(first["hint"])[-1]
    known = dlctl(*command.split(), "--json", ok=True).json
    assert [(node["host"], node["training_id"]) for node in known] == [(dead_gpu, training_id)]
    other = submit(dlctl, site, folder)
    verdict = site.root / "jobs" / other / contract.verdict_file(1)
    assert json.loads(wait_for_file(verdict))["state"] == "COMPLETED"
    dlctl("sites", "nodes", site.name, "--forget", dead_gpu, ok=True)
    assert dlctl("sites", "nodes", site.name, "--json", ok=True).json == []
