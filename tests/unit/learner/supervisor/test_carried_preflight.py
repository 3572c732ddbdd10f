"""The preflight of an attempt that counts for the next one in the same job, too."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from scheduler_plan import make_plan

from dlctl import contract
from dlctl.contract import Lifecycle, Preflight, State, Status, Verdict, VerdictKind, to_json
from learner.job.context import CHECKED_VARIABLE
from learner.lifecycle.manager import conclude
from learner.supervisor.preflight.reports import carried_over


def report(rank, port=7):
    return Preflight(
        rank, f"n{rank + 1}", "3.11.2", 2, 2, rank, "Open MPI", port=port, address=f"10.0.0.{rank}"
    )


@pytest.fixture
def job_dir(tmp_path):
    for attempt in (1, 2):
        (tmp_path / contract.attempt_dir(attempt)).mkdir(parents=True)
    for rank in range(2):
        path = tmp_path / contract.preflight_file(1, rank)
        contract.write_whole(path, to_json(report(rank)))
    return tmp_path


def test_it_counts_once_for_the_attempt_after_it(job_dir, monkeypatch):
    assert carried_over(job_dir, 2, 2) == []
    monkeypatch.setenv(CHECKED_VARIABLE, "1")
    first, second = carried_over(job_dir, 2, 2)
    assert first.port not in (0, 7)  # what has died may still hold the old one
    assert (first, second) == (report(0, first.port), report(1))
    kept = contract.read_record(Preflight, job_dir / contract.preflight_file(2, 0))
    assert kept == first
    assert CHECKED_VARIABLE not in os.environ
    assert carried_over(job_dir, 2, 2) == []


def test_not_with_another_number_of_learners_or_for_a_later_attempt(job_dir, monkeypatch):
    monkeypatch.setenv(CHECKED_VARIABLE, "1")
    assert carried_over(job_dir, 2, 3) == []
    monkeypatch.setenv(CHECKED_VARIABLE, "1")
    assert carried_over(job_dir, 3, 2) == []


@pytest.mark.parametrize(
    ("kind", "step", "fine"),
    [
        (VerdictKind.UNKNOWN, 9, True),
        (VerdictKind.LOSS_SPIKE, 9, True),
        (VerdictKind.UNKNOWN, None, False),  # nothing shows that it came to training
        (VerdictKind.NETWORK, 9, False),
        (VerdictKind.HUNG, 9, False),
    ],
)
def test_only_the_death_of_processes_leaves_the_nodes_as_they_were(tmp_path, kind, step, fine):
    (tmp_path / contract.attempt_dir(1)).mkdir(parents=True)
    (tmp_path / contract.CHECKPOINTS / "step-000000000007").mkdir(parents=True)
    status = Status("learner", 0, 1, State.FAILED, step=step)
    contract.write_whole(tmp_path / contract.status_file(1, "learner", 0), to_json(status))
    plan = replace(make_plan(job_dir=str(tmp_path)), lifecycle=Lifecycle())
    verdict = Verdict(1, "7", State.FAILED, "why", kind=kind)
    verdict, following = conclude(tmp_path, plan, verdict, 500.0)
    assert following is not None
    assert following.nodes_are_fine is fine
    contract.write_whole(tmp_path / contract.verdict_file(1), to_json(verdict))
    (tmp_path / contract.attempt_dir(2)).mkdir()
    _, following = conclude(tmp_path, plan, replace(verdict, attempt=2), 500.0)
    assert following is not None
    assert not following.nodes_are_fine, "the checkpoint has not advanced"
