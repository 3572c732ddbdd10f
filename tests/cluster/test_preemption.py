"""A job in a partition that another one comes before: it is halted, runs once, and continues."""

from __future__ import annotations

import pytest
from served import (
    SLOW_EPOCHS,
    SLOW_SAMPLES,
    assert_each_sample_was_done_once,
    hurry,
    learners_of,
    shared_memory,
    wait_for_learners,
    write_slow,
)
from trainings import COUNTER, change_site, submit, wait_for_state, write_training

from dlctl import contract


@pytest.fixture
def scavenger(cluster_site, xdg):
    """The site with a partition whose jobs others preempt."""
    partitions = {"scavenge": {"nodes": 2, "cpus_per_node": 2}}
    return change_site(cluster_site, xdg.config, partitions=partitions)


def preempt(dlctl, cluster, training_id, job_dir, wait_until):
    """Bring another job before this one, and wait until it has gone."""
    urgent = ["sbatch", "--parsable", "-p", "debug", "-w", "n1", "--exclusive", "--wrap", "true"]
    cluster.user(*urgent)
    known = wait_for_state(dlctl, wait_until, training_id, "HALTED")
    # Slurm leaves 2 s (KillWait): too few for the verdict, now and then.
    told = (
        "The scheduler ended the job: another job preempted it",
        "the job was preempted before all was saved",
    )
    assert known["reason"].startswith(told), known
    if verdict := dlctl("show", training_id, "--json", ok=True).json["verdict"]:
        assert verdict["kind"] == "preempted"
        assert verdict["evidence"]["scheduler_state"] == "PREEMPTED"
    assert f"dlctl resume {training_id}" in known["hint"]
    wait_until(lambda: not cluster.exec("squeue", "-h").strip(), 60, interval_s=0.5)
    assert not (job_dir / contract.attempt_dir(2)).exists()  # Slurm did not start it again


def test_a_job_that_is_preempted_goes_on(dlctl, scavenger, cluster, wait_until):
    folder = write_training(
        dlctl.cwd, {"command": "exec python3 counter.py 60"}, {"counter.py": COUNTER},
        learners=2, cpus=2,
    )  # fmt: skip
    training_id = submit(dlctl, scavenger, folder, "--partition", "scavenge")
    job_dir = scavenger.job_dir(training_id)
    counts = [job_dir / f"checkpoints/count-{rank}" for rank in (0, 1)]
    wait_until(lambda: all(c.exists() and int(c.read_text() or 0) > 3 for c in counts), 90)
    preempt(dlctl, cluster, training_id, job_dir, wait_until)
    saved = [int(count.read_text()) for count in counts]
    done = dlctl("resume", training_id, "--follow", timeout_s=240)
    assert done.exit_code == 0, (done.stdout, done.stderr)
    for rank in (0, 1):
        assert f"learner-{rank} | begins at {saved[rank]}" in done.stdout
        assert f"learner-{rank} | done at 60" in done.stdout


@pytest.mark.long
def test_learners_and_servers_that_are_preempted_go_on(dlctl, scavenger, cluster, wait_until):
    folder = write_slow(dlctl.cwd / "job", learners=2, cpus=2, time="10m")
    training_id = submit(dlctl, scavenger, folder, "--partition", "scavenge")
    job_dir = scavenger.job_dir(training_id)
    wait_for_learners(wait_until, job_dir, 2)
    checkpoints = job_dir / contract.CHECKPOINTS
    wait_until(lambda: any(checkpoints.iterdir()), 90)
    preempt(dlctl, cluster, training_id, job_dir, wait_until)
    assert learners_of(job_dir) == {}
    hurry(job_dir)
    done = dlctl("resume", training_id, "--follow", timeout_s=240)
    assert done.exit_code == 0, (done.stdout, done.stderr)
    assert "continuing from the checkpoint" in done.stdout
    assert_each_sample_was_done_once(job_dir, SLOW_SAMPLES, SLOW_EPOCHS, attempt=2)
    assert shared_memory(training_id, scavenger) == []
