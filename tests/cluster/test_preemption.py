"""A job in a partition that another one comes before: it is halted, runs once, and continues."""

from __future__ import annotations

import re

import pytest
from trainings import begin, change_site, count_of, write_counter
from waiting import wait_until

from dlctl import contract


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
