"""Going on with another number of learners, also after a node is lost, each attempt by its plan."""

from __future__ import annotations

import json
import signal

import pytest
from trainings import (
    ON_THE_CLUSTER,
    begin,
    count_of,
    halt,
    node_of,
    wait_for_state,
    write_counter,
    write_training,
)
from waiting import wait_until

from dlctl import contract
from dlctl.contract import Plan, Verdict

GOAL = 80


@ON_THE_CLUSTER
def test_two_learners_then_one_then_three(dlctl, site):
    training_id, job_dir = begin(dlctl, site, write_counter(dlctl.cwd, GOAL, learners=2))
    for learners, asked in ((2, None), (1, ["--learners", "1", "--memory", "600MiB"])):
        if asked:
            dlctl("resume", training_id, *asked, ok=True)
        last = learners - 1
        before = count_of(job_dir, last)
        wait_until(lambda n=last, before=before: count_of(job_dir, n) > before + 1, 90)
        halt(dlctl, training_id)
    done = dlctl("resume", training_id, "--learners", "3", "--follow", ok=True)
    assert f"learner-2 | done at {GOAL}" in done.stdout
    shown = dlctl("show", training_id, "--json", ok=True).json
    told = [(each["attempt"], each["resources"]["learners"]) for each in shown["attempts"]]
    assert told == [(1, 2), (2, 1), (3, 3)]
    assert len(shown["learners"]) == 3
    assert shown["plan"]["resources"]["memory_bytes_per_learner"] == 600 << 20
    folder = dlctl("fetch", "results", training_id, "--json", ok=True).json["folder"]
    plan = json.loads((dlctl.cwd / folder / "plan.json").read_text())
    assert plan["resources"]["learners"] == 3


def test_killed_while_resuming_runs_once_with_what_was_asked(dlctl, cluster_site):
    """kill -9 of `dlctl resume --learners 2` while it asks Slurm for the job."""
    training_id, job_dir = begin(dlctl, cluster_site, write_counter(dlctl.cwd, 10**6))
    wait_until(lambda: count_of(job_dir), 90)
    halt(dlctl, training_id)
    asking = job_dir / contract.submit_begin(2)
    with dlctl.start("resume", training_id, "--learners", "2") as killed:
        wait_until(asking.exists, interval_s=0.001, what="the second attempt")
        killed.send_signal(signal.SIGKILL)

    def trains():
        now = dlctl("status", training_id, "--json", ok=True).json
        assert now["state"] not in ("FAILED", "HALTED"), now
        if now["state"] == "QUEUED":
            dlctl("resume", training_id)
        return count_of(job_dir, 1)

    wait_until(trains, interval_s=0.3, what="the second learner")
    shown = dlctl("show", training_id, "--json", ok=True).json
    assert [each["resources"]["learners"] for each in shown["attempts"]] == [1, 2]
    dlctl("cancel", training_id, ok=True)
    wait_for_state(dlctl, training_id, "CANCELLED")


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


BEGIN_OF_MPI = "from mpi4py import MPI\nstep = MPI.COMM_WORLD.Barrier\n"
BEGIN_OF_GLOO = "import torch.distributed as d\nd.init_process_group('gloo')\nstep = d.barrier\n"
STEPS = """\
import time
step()
print("ready", flush=True)
while True:
    step()
    time.sleep(0.1)
"""


@pytest.mark.parametrize("begin_of", [BEGIN_OF_MPI, BEGIN_OF_GLOO], ids=["mpi", "gloo"])
def test_a_node_is_lost_whatever_the_others_say_of_it(dlctl, cluster_site, cluster, begin_of):
    """MPI and torch end the others at once, long before Slurm misses the node."""
    folder = write_training(
        dlctl.cwd, {"command": "python3 train.py"}, {"train.py": begin_of + STEPS},
        learners=2, nodes=2, time="1h", retries=1,
    )  # fmt: skip
    training_id, job_dir = begin(dlctl, cluster_site, folder)
    log = job_dir / contract.learner_log(1, 1)
    wait_until(lambda: log.exists() and "ready" in log.read_text(), 90)
    node = node_of(dlctl, training_id, 1)
    cluster.node_kill(node)
    wait_until((job_dir / contract.verdict_file(1)).exists, 120)
    first = contract.read_record(Verdict, job_dir / contract.verdict_file(1))
    assert first is not None and first.evidence is not None and first.action is not None
    assert (first.kind, first.evidence.host) == ("node_lost", f"n{node}"), first
    assert first.action.exclude == [f"n{node}"], first.action
    dlctl("cancel", training_id, ok=True)
