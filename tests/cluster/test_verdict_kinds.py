"""Each kind of verdict that can be made to happen on a real Slurm; others are in:

test_user_faults.py (user_error, out_of_memory, site), test_preemption.py (preempted),
test_full_disk.py (disk_full), test_hung_learners.py (hung), test_cgroups.py (cancelled by scancel).
"""

from __future__ import annotations

import pytest
from trainings import count_of, submit, wait_for_state, write_counter, write_training
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


@pytest.mark.long  # Slurm looks at limits every 30 s
def test_a_time_limit_that_an_administrator_shortens(dlctl, cluster_site, cluster):
    """Neither the plan nor the job's variables know it: only Slurm does."""
    training_id = counting(dlctl, cluster_site, count=3000)
    record = dlctl.record(training_id)
    cluster.exec("scontrol", "update", f"jobid={record.job_id}", "TimeLimit=1")
    verdict = cluster_site.job_dir(training_id) / contract.verdict_file(1)
    wait_until(verdict.exists, 150)
    told = contract.read_record(contract.Verdict, verdict)
    assert (told.kind, told.state) == ("time_limit", "HALTED"), told
    dlctl("cancel", training_id, ok=True)
