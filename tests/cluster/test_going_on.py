"""A training goes on by itself: the same scenarios on this machine and on the real cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from trainings import (
    COUNTER,
    ON_THE_CLUSTER,
    assert_no_step_twice,
    begin,
    change_site,
    count_of,
    verdict,
    wait_for_state,
    write_counter,
    write_training,
)  # fmt: skip
from waiting import wait_until

from dlctl import contract
from dlctl.contract import Status


def status(job_dir: Path, attempt: int, role: str, rank: int) -> Status | None:
    return contract.read_record(Status, job_dir / contract.status_file(attempt, role, rank))


def kill_on(site: Any, cluster: Any, found: Status | None, number: int = signal.SIGKILL) -> None:
    """Kill a process by its status, on its node."""
    assert found is not None
    if site.is_cluster:
        node = int(found.host.removeprefix("n"))
        cluster.exec("kill", f"-{int(number)}", str(found.pid), node=node)
    else:
        os.kill(found.pid, number)


def training(folder: Path, goal: int = 60, **keys: Any) -> Path:
    asked = {"learners": 2, "retries": 2, "retry": {"backoff": "1s"}} | keys
    return write_counter(folder, goal, **asked)


@ON_THE_CLUSTER
def test_a_program_that_is_killed_goes_on_in_the_same_job(dlctl, site):
    """The one learner that dies ends the attempt; nobody looks until the training has ended."""
    once = '[ -e "$JOB_STATE_DIR/died" ] || [ "$RANK" = 0 ] || { sleep 2; touch "$JOB_STATE_DIR/died"; kill -9 0; } & '  # noqa: E501
    folder = write_training(
        dlctl.cwd, {"command": f"{once}exec python3 counter.py 60"}, {"counter.py": COUNTER},
        learners=2, retries=2,
    )  # fmt: skip
    training_id, job_dir = begin(dlctl, site, folder)
    wait_until((job_dir / contract.verdict_file(2)).exists, 90)
    first, second = verdict(job_dir, 1), verdict(job_dir, 2)
    assert first is not None and second is not None and first.action is not None
    assert (first.state, first.action.kind, first.action.starter) == (
        "FAILED", "retry", "in_allocation",
    )  # fmt: skip
    assert (second.state, second.job_id) == ("COMPLETED", first.job_id)
    known = dlctl("status", training_id, "--json", ok=True).json
    assert (known["state"], known["attempt"], known["job_id"]) == ("COMPLETED", 2, first.job_id)
    log = dlctl("logs", training_id, ok=True).stdout
    assert "Attempt 2 follows: retry 1 of 2, from the newest checkpoint." in log
    assert log.count("learner-0 | done at 60") == 1


@ON_THE_CLUSTER
def test_a_supervisor_that_is_killed_is_succeeded(dlctl, site, request):
    """Nobody is left to write a verdict: the next command that looks does, and goes on."""
    cluster = request.getfixturevalue("cluster") if site.is_cluster else None
    training_id, job_dir = begin(dlctl, site, training(dlctl.cwd))
    wait_until(lambda: count_of(job_dir) > 5, 90)
    kill_on(site, cluster, status(job_dir, 1, "supervisor", 0))
    dlctl("logs", training_id, "--follow", ok=True)
    first = verdict(job_dir, 1)
    assert first is not None and first.action is not None
    assert (first.state, first.action.starter) == ("FAILED", "job")
    known = dlctl("status", training_id, "--json", ok=True).json
    assert (known["state"], known["attempt"]) == ("COMPLETED", 2)


@pytest.mark.costs(12)
@pytest.mark.first
def test_a_training_that_is_longer_than_the_limit_is_a_chain_of_jobs(dlctl, local_site, xdg):
    limits = {"all": {"max_time": "14s", "cpus_per_node": 8}}
    short = change_site(local_site, xdg.config, partitions=limits)
    training_id, job_dir = begin(dlctl, short, training(dlctl.cwd, 130, learners=1, time="90s"))
    plan = json.loads((job_dir / "plan.json").read_text())
    assert (plan["resources"]["time_s"], plan["lifecycle"]["links"]) == (14, 10)
    wait_until(lambda: any((job_dir / "results.json").parent.glob("attempts/*/trained.json")), 90)
    known = wait_for_state(dlctl, training_id, "COMPLETED")
    assert known["attempt"] >= 2
    links = [verdict(job_dir, n) for n in range(1, known["attempt"])]
    assert {(each.state, each.kind, each.action.starter) for each in links if each} == {
        ("HALTED", "time_limit", "job"),
    }  # fmt: skip
    assert_no_step_twice(dlctl("logs", training_id, ok=True).stdout)


@pytest.mark.first
def test_a_cancel_between_two_links_ends_the_chain(dlctl, local_site):
    """The next attempt has been announced, and waits for its back-off."""
    program = {"command": "echo 1 >$CHECKPOINT_DIR/model; echo 'Connection timed out'; exit 75"}
    folder = write_training(dlctl.cwd, program, learners=1, retries=2, retry={"backoff": "10m"})
    training_id, job_dir = begin(dlctl, local_site, folder)
    wait_until(lambda: verdict(job_dir, 1), 90)
    before = dlctl("status", training_id, "--json", ok=True).json
    assert before["state"] in ("QUEUED", "PENDING"), before
    dlctl("cancel", training_id, ok=True)
    after = dlctl("status", training_id, "--json", ok=True).json
    assert after["state"] == "CANCELLED"
    started = subprocess.run(["ls", job_dir / "attempts/2/status"], capture_output=True)
    assert started.returncode != 0, "attempt 2 never ran"
