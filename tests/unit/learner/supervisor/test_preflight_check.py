"""The preflight: its outcome, the nodes that it blames, and when it counts for the next attempt."""

import dataclasses
import os
from dataclasses import replace

import pytest
from node_job import Job
from scheduler_plan import make_plan

from dlctl import contract
from dlctl.contract import (
    MPI_PENDING,
    Lifecycle,
    NodeFault,
    Preflight,
    State,
    Status,
    Verdict,
    VerdictKind,
    to_json,
)
from learner.job.context import CHECKED_VARIABLE
from learner.lifecycle.manager import conclude
from learner.supervisor.preflight.judgement import Findings, judge
from learner.supervisor.preflight.node_health import remarks, unfit_nodes
from learner.supervisor.preflight.reports import carried_over


@pytest.mark.parametrize("mpi", ["", MPI_PENDING])
@pytest.mark.parametrize(
    "word",
    [
        "Node failure on n2",
        "Task launch for StepId=19.0 failed on node n2: Communication connection failure",
    ],
)
def test_a_node_lost_in_the_preflight_is_no_fault_of_the_site(tmp_path, mpi, word):
    plan = Job(tmp_path, "true", resources={"learners": 2, "nodes": 2}).plan
    words = [f"srun: error: {word}", "srun: Job step aborted"]
    reports = [Preflight(rank, "n1", "3", 2, None, None, mpi) for rank in range(1 + bool(mpi))]
    objection = judge(plan, Findings(reports, 1, words))
    assert objection is not None
    assert objection.reason == f"A node was lost during the preflight: {words[0]}"
    assert objection.hint == f"Start again, on other nodes: dlctl resume {plan.training_id}"
    assert (objection.evidence.rank, objection.evidence.host) == (0 if mpi else 1, "n2")
    told = judge(plan, Findings(reports, 1, words[1:]))
    assert told is not None and "dlctl resume" not in told.hint


def test_a_node_lost_after_all_have_reported_ends_nothing(tmp_path):
    plan = Job(tmp_path, "true").plan
    words = ["srun: error: Node failure on n1"]
    assert judge(plan, Findings([Preflight(0, "n1", "3", 1, None, None)], 1, words)) is None


def test_an_unreachable_node_is_named(tmp_path):
    plan = Job(tmp_path, "true", launch=contract.Launch("srun", ["srun"])).plan
    first = "srun: error: Task launch for StepId=66.2 failed on node n3: Connection failure"
    words = [first, "srun: error: Application launch failed", "srun: Job step aborted"]
    objection = judge(plan, Findings([], 233, words))
    assert objection is not None and objection.reason.endswith(f": {first}")
    told = judge(plan, Findings([], 1, words[2:]))
    assert told is not None and told.reason.endswith(": srun: Job step aborted")


@pytest.mark.parametrize(
    "word",
    [
        "slurmstepd-n1: error: Exceeded job memory limit",
        "srun: error: n1: task 0: Out Of Memory",
        "MemoryError",
        "OSError: [Errno 12] Cannot allocate memory",
    ],
)
def test_memory_that_runs_out_in_the_preflight_is_no_fault_of_python_or_the_root(tmp_path, word):
    job = Job(tmp_path, "true", resources={"memory_bytes_per_learner": 200 << 20},
              batch=contract.Batch("slurm"))  # fmt: skip
    told = judge(job.plan, Findings([], 137, [word, "srun: error: n1: task 0: Killed"]))
    assert told is not None and told.kind is VerdictKind.OUT_OF_MEMORY
    assert told.reason.endswith(f": {word}")
    assert told.hint.endswith(f": dlctl resume {job.plan.training_id} --memory 400MiB")
    starts = [Preflight(0, "n1", "3", 1, None, None, MPI_PENDING)]  # MPI's PMI was blamed
    assert judge(job.plan, Findings(starts, 137, [word])).hint == told.hint


def test_what_open_mpi_frames_with_dashes_is_told(tmp_path):
    """The reason was a line of dashes."""
    dashes = "-" * 74
    words = ["before", dashes, "prterun was asked to run as root.", "", "Don't.", dashes]
    told = judge(Job(tmp_path, "true").plan, Findings([], 1, words))
    assert told is not None and told.reason.endswith(": prterun was asked to run as root.")
    told = judge(Job(tmp_path / "b", "true").plan, Findings([], 1, words[2:]))
    assert told is not None and told.reason.endswith(": prterun was asked to run as root.")


def test_a_mistake_of_the_user_is_no_fault_of_the_site(tmp_path):
    plan = Job(tmp_path, "true").plan
    problem = "The folder '/data' is not there.\nCorrect it."

    def report(rank, host, problems, mistakes):
        more = {"problems": problems, "mistakes": mistakes}
        return Preflight(rank, host, "3", 1, None, None, **more)

    def kind(*reports):
        return judge(plan, Findings(list(reports), 0)).kind

    bad = report(0, "n1", [problem], [problem])
    assert kind(bad) == "user_error"
    assert kind(report(0, "n1", [problem], [])) == "site"
    assert kind(bad, report(1, "n2", [], [])) == "site", "only one node lacks it"


ENDED = "srun: error: n2: task 1: Exited with exit code 2"


@pytest.mark.parametrize(
    ("reports", "bad"),
    [
        ([Preflight(0, "n1", "3", 2, None, None)], ("n2",)),
        ([], ()),  # the site's Python may be gone everywhere
    ],
)
def test_a_node_on_which_nothing_starts_is_avoided_if_another_works(tmp_path, reports, bad):
    plan = Job(tmp_path, "true", resources={"learners": 2, "nodes": 2}).plan
    objection = judge(plan, Findings(reports, 1, [ENDED, "srun: error: n1: task 0: Terminated"]))
    assert objection is not None and ENDED in objection.reason
    assert objection.bad_hosts == bad


def test_what_all_nodes_lack_is_the_fault_of_none_though_each_names_itself(tmp_path):
    plan = Job(tmp_path, "true", resources={"learners": 2, "nodes": 2}).plan
    reports = [
        Preflight(
            n, f"n{n}", "3", 2, None, None, problems=[f"n{n} has no ib0, but eth0 10.0.0.{n}."]
        )
        for n in (0, 1)
    ]
    objection = judge(plan, Findings(reports, 0))
    assert objection is not None
    assert (objection.reason, objection.bad_hosts) == ("n0 has no ib0, but eth0 10.0.0.0.", ())


def test_a_node_that_alone_lacks_something_is_avoided(tmp_path):
    plan = Job(tmp_path, "true", resources={"learners": 2, "nodes": 2}).plan
    lacks = Preflight(
        1, "n2.example.org", "3", 2, None, None, node="n2", problems=["It lacks h5py."]
    )
    objection = judge(plan, Findings([Preflight(0, "n1", "3", 2, None, None), lacks], 0))
    assert objection is not None
    assert (objection.reason, objection.bad_hosts) == ("It lacks h5py. (Seen on n2.)", ("n2",))


LOST = NodeFault(VerdictKind.GPU_ERROR, "has a dead GPU")
UNSURE = NodeFault(VerdictKind.GPU_ERROR, "shows 0 of 1 GPUs", certain=False)


def report(node, **fields):
    return Preflight(
        rank=node, host=f"n{node + 1}.example.org", node=f"n{node + 1}", node_rank=node,
        python="3.11", launcher_size=4, mpi_size=4, mpi_rank=node, clock_at=100.0, **fields,
    )  # fmt: skip


def unfit(*reports):
    return [(each.host, each.fault.kind) for each in unfit_nodes(reports, 99.0, 101.0)]


def test_a_certain_fault_is_the_nodes_even_if_all_have_it():
    assert unfit(report(0), report(1, faults=[LOST])) == [("n2", "gpu_error")]
    assert unfit(report(0, faults=[LOST])) == [("n1", "gpu_error")]


def test_what_all_nodes_have_is_no_nodes_fault():
    assert unfit(report(0, faults=[UNSURE]), report(1, faults=[UNSURE])) == []
    assert unfit(report(0), report(1, faults=[UNSURE])) == [("n2", "gpu_error")]
    assert unfit(report(0, faults=[UNSURE])) == []


def test_a_clock_that_is_wrong_is_named():
    late = dataclasses.replace(report(1), clock_at=500.0)
    assert unfit(report(0), late) == [("n2", "site")]
    slight = dataclasses.replace(report(1), clock_at=90.0)
    assert unfit(report(0), slight) == []
    assert remarks([report(0), slight], 99.0, 101.0) == [
        "n2 has a clock that is 9 s behind the first node's"
    ]


def test_the_node_that_nobody_reaches_is_to_blame():
    ring = [
        report(0, reached=[3], unreached=[1]),
        report(1, unreached=[0, 2]),
        report(2, reached=[3], unreached=[1]),
        report(3, reached=[0, 2]),
    ]
    found = unfit_nodes(ring, 99.0, 101.0)
    assert [(each.host, each.fault.what) for each in found] == [
        ("n2", "has no connection with n1 and n3")
    ]


def test_a_site_without_connections_between_nodes_blames_none():
    assert unfit(report(0, unreached=[1]), report(1, unreached=[0])) == []


def was(rank, port=7):
    return Preflight(
        rank, f"n{rank + 1}", "3.11.2", 2, 2, rank, "Open MPI", port=port, address=f"10.0.0.{rank}"
    )


@pytest.fixture
def job_dir(tmp_path):
    for attempt in (1, 2):
        (tmp_path / contract.attempt_dir(attempt)).mkdir(parents=True)
    for rank in range(2):
        path = tmp_path / contract.preflight_file(1, rank)
        contract.write_whole(path, to_json(was(rank)))
    return tmp_path


def test_it_counts_once_for_the_attempt_after_it(job_dir, monkeypatch):
    assert carried_over(job_dir, 2, 2) == []
    monkeypatch.setenv(CHECKED_VARIABLE, "1")
    first, second = carried_over(job_dir, 2, 2)
    assert first.port not in (0, 7)  # what has died may still hold the old one
    assert (first, second) == (was(0, first.port), was(1))
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
