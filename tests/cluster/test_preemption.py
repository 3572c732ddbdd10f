"""A job in a partition that another one comes before: it is halted, runs once, and goes on."""

from __future__ import annotations

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
from trainings import change_site, submit, wait_for_state

from dlctl import contract


def test_a_job_that_is_preempted_goes_on(dlctl, cluster_site, cluster, xdg, wait_until):
    site = change_site(
        cluster_site, xdg.config, partitions={"scavenge": {"nodes": 2, "cpus_per_node": 2}}
    )
    folder = write_slow(dlctl.cwd / "job", learners=2, cpus=2, time="10m")
    training_id = submit(dlctl, site, folder, "--partition", "scavenge")
    job_dir = site.job_dir(training_id)
    wait_for_learners(wait_until, job_dir, 2)
    checkpoints = job_dir / contract.CHECKPOINTS
    wait_until(lambda: any(checkpoints.iterdir()), 90)
    urgent = ["sbatch", "--parsable", "-p", "debug", "-w", "n1", "--exclusive", "--wrap", "true"]
    cluster.user(*urgent)
    known = wait_for_state(dlctl, wait_until, training_id, "HALTED")
    # Slurm leaves 2 s (KillWait): too few for the verdict, now and then.
    told = "The scheduler ended the job", "the job was preempted before all was saved"
    assert known["reason"].startswith(told), known
    assert f"dlctl resume {training_id}" in known["hint"]
    wait_until(lambda: not cluster.exec("squeue", "-h").strip(), 60)
    assert not (job_dir / contract.attempt_dir(2)).exists()  # Slurm did not start it again
    assert learners_of(job_dir) == {}
    hurry(job_dir)
    done = dlctl("resume", training_id, "--follow", timeout_s=240)
    assert done.exit_code == 0, (done.stdout, done.stderr)
    assert "continuing from the checkpoint" in done.stdout
    assert_each_sample_was_done_once(job_dir, SLOW_SAMPLES, SLOW_EPOCHS, attempt=2)
    assert shared_memory(training_id, site) == []
