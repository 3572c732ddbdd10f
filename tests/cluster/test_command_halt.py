"""Halting the user's own program: on request and by the time limit, on both sites."""

from __future__ import annotations

from trainings import COUNTER, ON_THE_CLUSTER, submit, wait_for_state, write_training

DEAF = "trap '' USR2 TERM; echo deaf >\"$RESULT_DIR/ready\"; while :; do sleep 1; done"


@ON_THE_CLUSTER
def test_a_program_that_saves_is_halted_and_goes_on(dlctl, site, wait_until):
    folder = write_training(
        dlctl.cwd, {"command": "exec python3 counter.py 40"}, {"counter.py": COUNTER}, learners=2
    )
    training_id = submit(dlctl, site, folder)
    counts = [site.job_dir(training_id) / f"checkpoints/count-{rank}" for rank in (0, 1)]
    wait_until(lambda: all(c.exists() and int(c.read_text()) > 3 for c in counts), 90)
    dlctl("halt", training_id, ok=True)
    known = wait_for_state(dlctl, wait_until, training_id, "HALTED")
    assert known["reason"] == "Halted on request."
    assert f"dlctl resume {training_id}" in known["hint"]
    saved = [int(count.read_text()) for count in counts]
    log = dlctl("logs", training_id, ok=True).stdout
    for rank in (0, 1):
        assert f"learner-{rank} | saved {saved[rank]}" in log
    assert max(saved) < 40
    done = dlctl("resume", training_id, "--follow")
    assert done.exit_code == 0, (done.stdout, done.stderr)
    for rank in (0, 1):
        assert f"learner-{rank} | begins at {saved[rank]}" in done.stdout
        assert f"learner-{rank} | done at 40" in done.stdout
    assert dlctl("status", training_id, "--json", ok=True).json["state"] == "COMPLETED"


@ON_THE_CLUSTER
def test_a_program_that_does_not_listen_is_ended(dlctl, site, wait_until):
    """The grace is a quarter of a short time limit."""
    folder = write_training(dlctl.cwd, {"command": DEAF}, time="20s")
    training_id = submit(dlctl, site, folder)
    wait_until((site.job_dir(training_id) / "results/ready").exists, 90)
    dlctl("halt", training_id, ok=True)
    known = wait_for_state(dlctl, wait_until, training_id, "HALTED")
    assert known["reason"] == "Halted on request, before all was saved."
    shown = dlctl("show", training_id, "--json", ok=True).json
    assert shown["learners"][0]["reason"] == "did not stop in time and was killed"


@ON_THE_CLUSTER
def test_a_time_limit_that_comes_near(dlctl, site, wait_until):
    """A short job's last quarter is for saving; in the second attempt there is little to do."""
    goal = '$([ -e "$CHECKPOINT_DIR/count-0" ] && echo 1 || echo 100000)'
    folder = write_training(
        dlctl.cwd, {"command": f"exec python3 counter.py {goal}"}, {"counter.py": COUNTER},
        time="16s",
    )  # fmt: skip
    training_id = submit(dlctl, site, folder)
    known = wait_for_state(dlctl, wait_until, training_id, "HALTED", timeout_s=120)
    assert "time limit is near" in known["reason"]
    saved = int((site.job_dir(training_id) / "checkpoints/count-0").read_text())
    assert 0 < saved < 100000
    done = dlctl("resume", training_id, "--follow")
    assert done.exit_code == 0, (done.stdout, done.stderr)
    assert f"begins at {saved}" in done.stdout
    assert f"done at {saved}" in done.stdout
