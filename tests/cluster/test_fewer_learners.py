"""A node is lost, and the learners that are left go on in the same job, without a server."""

from __future__ import annotations

from trainings import COUNTER, submit, write_training

from dlctl import contract
from dlctl.contract import Plan, Verdict


def test_those_that_are_left_go_on(dlctl, cluster_site, cluster, wait_until):
    folder = write_training(
        dlctl.cwd, {"command": "exec python3 counter.py 100"}, {"counter.py": COUNTER},
        learners=2, nodes=2, retry={"min_learners": 1, "backoff": "1s"},
    )  # fmt: skip
    training_id = submit(dlctl, cluster_site, folder)
    job_dir = cluster_site.job_dir(training_id)
    counts = [job_dir / f"checkpoints/count-{rank}" for rank in (0, 1)]
    wait_until(lambda: all(c.exists() and int(c.read_text() or 0) > 5 for c in counts), 90)
    second = contract.read_record(contract.Status, job_dir / contract.status_file(1, "learner", 1))
    assert second is not None
    cluster.node_kill(int(second.host.removeprefix("n")))
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
