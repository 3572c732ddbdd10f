"""Each kind of verdict that can be made to happen on a real Slurm; others are in:

test_user_faults.py (user_error, out_of_memory, site),
test_full_disk.py (disk_full), test_hung_learners.py (hung), test_cgroups.py (cancelled by scancel).
"""

from __future__ import annotations

import re

import pytest
from trainings import (
    begin,
    change_site,
    count_of,
    submit,
    wait_for_state,
    write_counter,
    write_training,
)
from waiting import wait_until

from dlctl import contract

GPU_BREAKS = "echo 'RuntimeError: CUDA error: uncorrectable ECC error encountered'; exit 1"
GPU_IS_FULL = "echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB'; exit 1"
MADE = {
    "try_again": "echo 'no license is free'; exit 75",
    "user_error": "echo 'no labels'; exit 78",
    "not_a_number": "echo 'Loss is nan, stopping training'; exit 1",
    "gpu_error": GPU_BREAKS,
    "gpu_out_of_memory": GPU_IS_FULL,
    "network": "exec python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 9))'",
    "disk_full": "head -c 1M /dev/zero >/dev/full",
    "unknown": "kill -9 $$",
}


def verdict_of(dlctl, training_id):
    return dlctl("show", training_id, "--json", ok=True).json["verdict"]


def counting(dlctl, site, count=600):
    """Submit two learners that count on two nodes, and wait until they do; return the id."""
    folder = write_counter(dlctl.cwd, count, learners=2, cpus=2, retries=0)
    training_id = submit(dlctl, site, folder)
    wait_until(lambda: min(count_of(site.job_dir(training_id), rank) for rank in (0, 1)) > 1, 90)
    return training_id


def test_what_a_learner_says_is_the_kind_and_slurm_calls_the_job_failed(
    dlctl, cluster_site, cluster
):
    """All at once, one node each: a job takes a second or two."""
    sent = {}
    for kind, command in MADE.items():
        folder = write_training(dlctl.cwd / kind, {"command": command}, retries=0, memory="100MiB")
        sent[kind] = submit(dlctl, cluster_site, folder)
    for kind, training_id in sent.items():
        known = wait_for_state(dlctl, training_id, "FAILED")
        verdict = verdict_of(dlctl, training_id)
        assert verdict["kind"] == kind, verdict["reason"]
        assert verdict["evidence"]["role"] == "learner"
        job = known["job_id"]
        wait_until(
            lambda job=job: "JobState=FAILED" in cluster.user("scontrol", "show", "job", job), 60
        )


def test_a_cancelled_training(dlctl, cluster_site):
    training_id = counting(dlctl, cluster_site)
    dlctl("cancel", training_id, ok=True)
    wait_for_state(dlctl, training_id, "CANCELLED")
    verdict = verdict_of(dlctl, training_id)
    assert (verdict["kind"], verdict["state"]) == ("cancelled", "CANCELLED")


def test_a_step_that_somebody_cancels_is_the_schedulers_doing(dlctl, cluster_site, cluster):
    training_id = counting(dlctl, cluster_site)
    job_id = dlctl.record(training_id).job_id
    steps = cluster.user("squeue", "--steps", "-h", "-j", job_id, "-o", "%i").split()
    step = next(each for each in steps if each.split(".")[-1].isdecimal())
    cluster.user("scancel", step)
    wait_for_state(dlctl, training_id, "FAILED")
    verdict = verdict_of(dlctl, training_id)
    assert verdict["kind"] == "scheduler", verdict
    assert verdict["action"]["why"] == "no retries are allowed"


@pytest.fixture
def scavenger(cluster_site, xdg):
    """The site with a partition whose jobs others preempt."""
    partitions = {"scavenge": {"nodes": 2, "cpus_per_node": 2}}
    return change_site(cluster_site, xdg.config, partitions=partitions)


def preempt(dlctl, cluster, training_id, job_dir):
    """Bring another job before this one, and wait until it has gone."""
    urgent = ["sbatch", "--parsable", "-p", "debug", "-w", "n1", "--exclusive", "--wrap", "true"]
    cluster.user(*urgent)
    wait_until((job_dir / contract.submit_begin(2)).exists, 90)
    verdict = contract.read_record(contract.Verdict, job_dir / contract.verdict_file(1))
    assert verdict is not None
    assert verdict.kind == "preempted", verdict
    assert verdict.evidence is not None
    if verdict.evidence.scheduler_state:  # Slurm leaves 2 s (KillWait), now and then too few
        assert verdict.evidence.scheduler_state in ("PREEMPTED", "REQUEUED")
        assert verdict.reason.startswith("The scheduler ended the job: ")


def test_a_job_that_is_preempted_goes_on(dlctl, scavenger, cluster):
    folder = write_counter(dlctl.cwd, 60, learners=2, cpus=2)
    training_id, job_dir = begin(dlctl, scavenger, folder, "--partition", "scavenge")
    wait_until(lambda: min(count_of(job_dir, rank) for rank in (0, 1)) > 3, 90)
    preempt(dlctl, cluster, training_id, job_dir)
    done = dlctl("logs", training_id, "--follow", timeout_s=240, ok=True)
    for rank in (0, 1):
        began = re.findall(rf"learner-{rank} \| begins at (\d+)", done.stdout)
        assert int(began[-1]) > 0
        assert f"learner-{rank} | done at 60" in done.stdout
