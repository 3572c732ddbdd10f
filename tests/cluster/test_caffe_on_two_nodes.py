"""Listing 1's net on two nodes of a cluster, halted and continued: nothing of it is lost.

Three jobs with torch on two nodes each take more than five seconds.
"""

from __future__ import annotations

import json
import shutil

import pytest
from trainings import REPOSITORY, submit, wait_for_state

MAX_ITER = 400


@pytest.mark.long  # on one node: test_third_party.py
def test_caffes_net_on_two_nodes_ends_with_the_weights_of_an_undisturbed_training(
    dlctl, cluster_site, wait_until
):
    shutil.copytree(REPOSITORY / "examples/frameworks", folder := dlctl.cwd / "caffe")
    solver = folder / "caffe/lenet_solver.prototxt"
    text = solver.read_text().replace("max_iter: 300", f"max_iter: {MAX_ITER}")
    solver.write_text(text.replace("snapshot: 100", "snapshot: 20"))
    manifest = folder / "manifest.yml"
    manifest.write_text((folder / "caffe.yml").read_text() + "nodes: 2\ntime: 10m\n")
    halted, undisturbed = (submit(dlctl, cluster_site, folder) for _ in range(2))
    saved = cluster_site.job_dir(halted) / "checkpoints"
    wait_until(lambda: list(saved.glob("step-*")), 120)
    dlctl("halt", halted, ok=True)
    wait_for_state(dlctl, wait_until, halted, "HALTED")
    done = dlctl("resume", halted, "--follow", timeout_s=200, ok=True)
    assert "continuing from the checkpoint at step" in done.stdout
    wait_for_state(dlctl, wait_until, undisturbed, "COMPLETED")
    of_both = []
    for training_id in (halted, undisturbed):
        job_dir = cluster_site.job_dir(training_id)
        plan = json.loads((job_dir / "plan.json").read_text())
        assert (plan["resources"]["nodes"], plan["resources"]["learners"]) == (2, 2)
        lines = dlctl("metrics", training_id, "--json", ok=True).stdout.splitlines()
        losses = {(each["step"], each["learner"]): each["values"]["loss"]
                  for each in map(json.loads, lines) if "loss" in each["values"]}  # fmt: skip
        weights = (job_dir / f"results/lenet_iter_{MAX_ITER}.caffemodel").read_bytes()
        of_both.append((weights, losses[max(losses)]))
    assert of_both[0] == of_both[1], "equal to the bit"
