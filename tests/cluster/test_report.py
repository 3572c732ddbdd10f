"""The ledger of real trainings, on this machine and on a real Slurm with accounting."""

from __future__ import annotations

import pytest
from test_control import slow_training
from trainings import ON_THE_CLUSTER, submit, wait_for_file, wait_for_state

from dlctl import contract


@ON_THE_CLUSTER
def test_the_hours_of_a_training_that_was_resumed(dlctl, site, wait_until):
    folder = slow_training(dlctl.cwd)
    training_id = submit(dlctl, site, folder)
    job_dir = site.job_dir(training_id)
    wait_for_file(wait_until, job_dir / contract.metrics_file(1, 0))
    running = dlctl("report", training_id, "--json", ok=True).json
    assert running["attempts"] == 1 and running["node_hours"] > 0
    dlctl("halt", training_id, ok=True)
    wait_for_state(dlctl, wait_until, training_id, "HALTED")
    (job_dir / contract.JOB_STATE / "hurry").touch()
    dlctl("resume", training_id, ok=True)
    wait_for_state(dlctl, wait_until, training_id, "COMPLETED")

    def settled():
        found = dlctl("report", training_id, "--json", ok=True).json
        return found if not site.is_cluster or found["cpus_used"] is not None else None

    found = wait_until(settled, 60, what="the accounting")
    assert found["attempts"] == 2
    assert sum(found["node_hours_by_use"].values()) == pytest.approx(found["node_hours"])
    assert found["node_hours_by_use"]["useful"] > 0 and found["node_hours_by_use"]["starting"] > 0
    assert found["node_hours_by_use"]["again"] == 0
    assert found["memory_asked_bytes"] == 768 * 2**20 and found["memory_used_bytes"] > 2**20
    shown = dlctl("report", training_id, ok=True).stdout
    assert "done again after faults" in shown and "node-hours" in shown
