"""A node with a dead GPU, as in the paper's colloquium: named, avoided and remembered."""

from __future__ import annotations

import json

import pytest
from trainings import change_site, submit, wait_for_file, write_training

from dlctl import contract

DEAD = """\
#!/bin/sh
echo 'Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.' >&2
exit 15
"""


@pytest.fixture
def dead_gpu(cluster):
    """Let the GPU of node 1 be dead: Slurm does not know."""
    folder = "/tmp/gpu-tools"
    cluster.user("mkdir", "-p", folder, node=1)
    cluster.user("sh", "-c", f"cat >{folder}/nvidia-smi <<'end'\n{DEAD}end", node=1)
    cluster.user("chmod", "755", f"{folder}/nvidia-smi", node=1)
    yield folder
    cluster.user("rm", "-rf", folder, node=1)


def test_a_node_with_a_dead_gpu_is_named_avoided_and_remembered(
    dlctl, cluster_site, cluster, dead_gpu, xdg, wait_until
):
    site = change_site(cluster_site, xdg.config, environment={"setup": [f"PATH={dead_gpu}:$PATH"]})
    folder = write_training(
        dlctl.cwd / "job", {"command": "echo trained on $(hostname)"}, learners=2, nodes=2, gpus=1
    )
    training_id = submit(dlctl, site, folder)
    job = site.root / "jobs" / training_id
    first = json.loads(wait_for_file(wait_until, job / contract.verdict_file(1)))
    assert (first["kind"], first["bad_hosts"]) == ("gpu_error", ["n1"]), first
    assert "The node n1 has a GPU that does not answer (nvidia-smi: Unable to" in first["reason"]
    assert first["action"]["exclude"] == ["n1"]
    second = json.loads(wait_for_file(wait_until, job / contract.verdict_file(2)))
    assert second["state"] == "COMPLETED", second
    reports = [
        json.loads((job / contract.preflight_file(2, rank)).read_text()) for rank in range(2)
    ]
    assert "n1" not in {report["node"] for report in reports}
    assert sorted(reports[0]["reached"]) == [1]
    assert max(report["took_s"] for report in reports) < 5

    # Another training avoids the node until somebody forgets it.
    known = dlctl("sites", "nodes", site.name, "--json", ok=True).json
    assert [(node["host"], node["training_id"]) for node in known] == [("n1", training_id)]
    other = submit(dlctl, site, folder)
    verdict = site.root / "jobs" / other / contract.verdict_file(1)
    assert json.loads(wait_for_file(wait_until, verdict))["state"] == "COMPLETED"
    dlctl("sites", "nodes", site.name, "--forget", "n1", ok=True)
    assert dlctl("sites", "nodes", site.name, "--json", ok=True).json == []
