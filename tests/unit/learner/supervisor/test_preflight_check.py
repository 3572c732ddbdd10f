"""The outcome of a preflight in which some ranks wrote no report."""

from __future__ import annotations

import pytest
from node_job import Job

from dlctl import contract
from dlctl.contract import MPI_PENDING, Preflight
from learner.supervisor.preflight.judgement import Findings, judge


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
