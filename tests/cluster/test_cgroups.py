"""Where Slurm tracks and limits jobs by cgroups, as sites do: who is killed, and who may save."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from cluster import Cluster, has_cgroups, one_at_a_time
from served import (
    SLOW_EPOCHS,
    SLOW_SAMPLES,
    assert_each_sample_was_done_once,
    hurry,
    wait_for_learners,
    write_slow,
)
from trainings import REPOSITORY, begin, wait_for_state
from waiting import wait_until

from dlctl import contract

pytestmark = [
    pytest.mark.xdist_group("cgroups"),  # one cluster for all of them
    pytest.mark.skipif(
        not has_cgroups(), reason="a cluster has cgroups only for root, and of version 1"
    ),
]
HOARD = """\
        if os.environ["LEARNER_ID"] == "2":
            self.__dict__.setdefault("hoard", []).append(torch.ones(25_000_000))
        return self.line"""
"""Learner 2 takes 100 MB more with each batch."""


@pytest.fixture(scope="session")
def _cluster_with_cgroups():
    cluster = Cluster(nodes=2, venv=Path(sys.prefix), hide=REPOSITORY, cgroups=True)
    try:
        with one_at_a_time():
            cluster.start()
        yield cluster
    finally:
        cluster.wipe()


@pytest.fixture
def cluster(_cluster_with_cgroups):
    """Instead of the session's, for all fixtures of these tests."""
    yield _cluster_with_cgroups
    _cluster_with_cgroups.heal()


def test_a_job_that_slurm_ends_saves_first(dlctl, cluster_site, cluster):
    folder = write_slow(dlctl.cwd / "job", learners=2, cpus=2, time="10m")
    training_id, job_dir = begin(dlctl, cluster_site, folder)
    wait_for_learners(job_dir, 2)
    checkpoints = job_dir / contract.CHECKPOINTS
    wait_until(lambda: any(checkpoints.iterdir()), 90)
    cluster.user("scancel", "--user", cluster.user_name)
    known = wait_for_state(dlctl, training_id, "HALTED")
    why = "The scheduler ended the job: somebody cancelled it by scancel."
    assert known["reason"] == why, dlctl("logs", training_id).stdout
    verdict = dlctl("show", training_id, "--json", ok=True).json["verdict"]
    assert (verdict["kind"], verdict["evidence"]["scheduler_state"]) == ("cancelled", "CANCELLED")
    hurry(job_dir)
    done = dlctl("resume", training_id, "--follow", timeout_s=240, ok=True)
    assert "continuing from the checkpoint" in done.stdout
    assert_each_sample_was_done_once(job_dir, SLOW_SAMPLES, SLOW_EPOCHS, attempt=2)


@pytest.mark.long
def test_a_learner_whose_memory_never_suffices_is_given_up(dlctl, cluster_site):
    """Each of its lives does a chunk or two: without an end it would train for ever."""
    folder = write_slow(dlctl.cwd / "job", learners=2, memory="450MiB", time="10m")
    code = (folder / "train.py").read_text()
    (folder / "train.py").write_text(code.replace("        return self.line", HOARD))
    training_id, job_dir = begin(dlctl, cluster_site, folder)
    log = job_dir / contract.attempt_dir(1) / "slurm.out"
    why = "killed by signal 9, out of memory, 3 times in a row, each within 10 min of its start"
    said = f"Giving up learner 1 on n1: it was {why}"
    wait_until(lambda: log.exists() and said in log.read_text(), 120)
    hurry(job_dir)
    known = wait_for_state(dlctl, training_id, "COMPLETED")
    assert known["reason"] == f"1 of 2 learners ended with exit code 0; learner 1 was {why}."
