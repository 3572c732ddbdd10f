"""What a compute node says about who can start the next attempt of a training."""

import pytest

from dlctl.site_admin.node_probe import judge, judge_namespaces
from dlctl.sites.files import parse_site

SITE = parse_site(
    "x",
    "root: /r\nscheduler: {kind: slurm}\ntransport: {kind: local}\n"
    "launcher: {kind: srun}\nenvironment: {python: /usr/bin/python3}\n",
)
DENIED = (
    "sbatch: error: Batch job submission failed: Access/permission denied "
    "(submission from compute nodes is not allowed)"
)


@pytest.mark.parametrize(
    ("answer", "outcome", "seen", "hint"),
    [
        ("dlctl-node n3\ndlctl-submit 0 sbatch: Job 7 to start\ndlctl-control 0 \n", "ok",
         "n3 can submit jobs", ""),
        (f"banner\ndlctl-node n3\ndlctl-submit 1 {DENIED}\ndlctl-control 0\n", "warning",
         f"not possible from n3: job: {DENIED}",
         "set scheduler.next_attempt: [in_allocation, successor, requeue, client]"),
        ("dlctl-node n3\ndlctl-submit 127 sbatch: not found\ndlctl-control 127 not found\n",
         "warning", "not possible from n3: job: sbatch: not found; requeue: not found",
         "set scheduler.next_attempt: [in_allocation, successor, client]"),
        ("", "warning", "no node has answered: srun: error: busy", "try again when a node"),
    ],
)  # fmt: skip
def test_the_answer_of_a_node(answer, outcome, seen, hint):
    check = judge(SITE, answer, "srun: error: busy")
    assert (check.outcome, check.seen) == (outcome, seen)
    assert check.hint.startswith(hint)


def test_a_node_without_user_namespaces_is_named():
    said = "unshare: Operation not permitted"
    (check,) = judge_namespaces(f"dlctl-node n7\ndlctl-namespaces 1 {said}")
    assert (check.outcome, check.name) == ("warning", "paths of the service")
    assert check.seen == f"n7 allows no user namespaces: {said}"
    assert "$DATA_DIR" in check.hint
    (check,) = judge_namespaces("dlctl-node n7\ndlctl-namespaces 0 ")
    assert check.outcome == "ok"
    assert judge_namespaces("") == []
