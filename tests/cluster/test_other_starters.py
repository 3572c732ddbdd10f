"""A chain of jobs at a site whose nodes may not submit jobs; nobody looks until it has ended."""

from __future__ import annotations

import pytest
from trainings import assert_no_step_twice, change_site, submit, verdict, write_counter
from waiting import wait_until


@pytest.fixture
def start(dlctl, cluster_site, xdg):
    """Submit a training of two links, in jobs of 30 s, with these starters only.

    On a busy machine a job needs half of that to begin, and there are more links.
    """

    def submitted(*starters):
        limits = {"debug": {"max_time": "30s", "nodes": 4, "cpus_per_node": 2}}
        allowed = {"next_attempt": [*starters, "client"]}
        site = change_site(cluster_site, xdg.config, partitions=limits, scheduler=allowed)
        folder = write_counter(dlctl.cwd, 260, time="3m")
        training_id = submit(dlctl, site, folder, "--partition", "debug")
        return training_id, site.job_dir(training_id)

    return submitted


def completed(job_dir):
    """Return whether any attempt has completed; nobody asks dlctl, which would look."""
    attempts = range(1, 1 + len(list(job_dir.glob("attempts/*"))))
    return any((each := verdict(job_dir, n)) and each.state == "COMPLETED" for n in attempts)


def assert_one_chain(dlctl, training_id, job_dir, starter):
    """Return the job ids of the attempts, after a check that each step was done once."""
    known = dlctl("status", training_id, "--json", ok=True).json
    assert known["state"] == "COMPLETED", known
    links = [verdict(job_dir, number) for number in range(1, known["attempt"])]
    assert links
    assert {(each.kind, each.action.starter) for each in links} == {("time_limit", starter)}
    assert_no_step_twice(dlctl("logs", training_id, ok=True).stdout)
    return [each.job_id for each in links] + [known["job_id"]]


def test_a_job_that_asks_slurm_for_another_run_is_both_links(dlctl, start):
    training_id, job_dir = start("requeue")
    wait_until(lambda: verdict(job_dir, 1), 60)
    known = dlctl("status", training_id, "--json", ok=True).json
    assert known["state"] in ("QUEUED", "PENDING", "DEPLOYING"), known
    wait_until(lambda: completed(job_dir), 240)
    ran = assert_one_chain(dlctl, training_id, job_dir, "requeue")
    assert len(set(ran)) == 1


def test_a_node_is_asked_who_can_start_the_next_attempt(dlctl, cluster_site):
    checks = dlctl("doctor", cluster_site.name, "--deep", "--json").json
    told = {each["name"]: each for each in checks}
    next_attempt, paths = told["chaining"], told["paths of the service"]
    assert next_attempt["state"] == paths["state"] == "ok", told
    assert "can submit jobs" in next_attempt["evidence"]
    assert "programs can see /mnt/data, /mnt/results and /job on n" in paths["evidence"]
