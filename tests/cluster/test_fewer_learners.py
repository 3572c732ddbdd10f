"""A node is lost, and the learners that are left go on in the same job, without a server."""

from __future__ import annotations

from trainings import begin, count_of, node_of, write_counter
from waiting import wait_until

from dlctl import contract
from dlctl.contract import Plan, Verdict


def test_those_that_are_left_go_on(dlctl, cluster_site, cluster):
    keys = {"learners": 2, "nodes": 2, "retry": {"min_learners": 1, "backoff": "1s"}}
    folder = write_counter(dlctl.cwd, 100, **keys)
    training_id, job_dir = begin(dlctl, cluster_site, folder)
    wait_until(lambda: min(count_of(job_dir, rank) for rank in (0, 1)) > 5, 90)
    cluster.node_kill(node_of(dlctl, training_id, 1))
    wait_until((job_dir / contract.verdict_file(2)).exists, 120)
    known = dlctl("status", training_id, "--json", ok=True).json
    assert (known["state"], known["attempt"]) == ("COMPLETED", 2), known
    first = contract.read_record(Verdict, job_dir / contract.verdict_file(1))
    assert first is not None
    assert first.action is not None
    assert (first.kind, first.action.starter) == ("node_lost", "in_allocation"), first
    assert known["job_id"] == first.job_id
    plan = contract.read_record(Plan, job_dir / contract.plan_file(2))
    assert plan is not None
    assert (plan.resources.learners, plan.resources.nodes) == (1, 1)
    assert "learner-0 | done at 100" in dlctl("logs", training_id, ok=True).stdout
