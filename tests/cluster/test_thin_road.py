"""The thin road of `make test`: each verb once, on one training, on both sites."""

from __future__ import annotations

from pathlib import Path

import pytest
from trainings import (
    COUNTER,
    assert_no_step_twice,
    begin,
    count_of,
    node_of,
    verdict,
    wait_for_state,
    write_training,
)
from waiting import wait_until

from dlctl import contract


@pytest.mark.first
@pytest.mark.costs(20)
def test_from_submission_to_results_through_a_halt_and_a_lost_node(dlctl, site):
    """submit → logs → halt → resume → (a node is lost) → fetch; no step is done twice or lost."""
    goal = 80
    program = f"python3 counter.py {goal} && cp $CHECKPOINT_DIR/count-0 $RESULT_DIR/model.pt"
    folder = write_training(dlctl.cwd, {"command": program}, {"counter.py": COUNTER}, retries=2)
    training_id, job_dir = begin(dlctl, site, folder)
    with dlctl.start("logs", "--follow", training_id) as follower:
        assert any("begins at 0" in line for line in follower.stdout)
        dlctl("halt", training_id, ok=True)
        assert "saved" in follower.stdout.read(), "the log is followed to the end of the attempt"
    wait_for_state(dlctl, training_id, "HALTED")
    saved = count_of(job_dir)
    dlctl("resume", training_id, ok=True)
    wait_until(lambda: count_of(job_dir) > saved, what="the training to go on")
    if site.cluster is not None:
        site.cluster.node_kill(node_of(dlctl, training_id))
    known = wait_for_state(dlctl, training_id, "COMPLETED")
    assert known["attempt"] == (3 if site.is_cluster else 2)
    if site.is_cluster:
        lost = verdict(job_dir, 2)
        assert lost is None or lost.kind == contract.VerdictKind.NODE_LOST, lost
    answer = dlctl("fetch", "results", training_id, "--json", ok=True).json
    assert (Path(answer["folder"]) / "model.pt").read_text() == str(goal)
    log = dlctl("logs", training_id, ok=True).stdout
    assert f"begins at {saved}\n" in log, "it went on where it was halted"
    if not site.is_cluster:  # where a node is lost, so is what it had not said yet
        assert_no_step_twice(log)
