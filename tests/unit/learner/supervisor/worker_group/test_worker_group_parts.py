"""The parts of the worker group: restart policy, shard placement, messages; pure, or only files."""

import dataclasses
import os
import stat

import pytest
from node_job import Job, status
from worker_group_job import WorkerGroupJob

from dlctl import contract
from dlctl.contract import Directive, Evidence, Homes, State, VerdictKind
from learner.agent.preflight import wants_mpi
from learner.errors import UserFault
from learner.job.batch import batch_system
from learner.job.context import Ranks, find_ranks
from learner.job.directives import HaltTime, Outside
from learner.job.outcome import failed as failure_of
from learner.job.status import UNSAVED
from learner.supervisor.control import EndRequest
from learner.supervisor.statuses import Observed
from learner.supervisor.verdict import decide
from learner.supervisor.worker_group.shard_placement import (
    at_the_end,
    first_homes,
    make_secret,
    remove_what_is_of_no_use,
    without_node,
    write_homes,
)
from learner.supervisor.worker_group.worker import Restarts, how_it_died, is_too_slow, is_user_error


def test_deaths_in_a_row_are_counted_since_the_last_progress():
    restarts = Restarts(3)
    assert [restarts.died(progress=p) for p in (False, False)] == [0.5, 1.0]
    assert restarts.died(progress=True) == 0.5
    assert [restarts.died(progress=p) for p in (False, False, False)] == [0.5, 1.0, None]
    many = Restarts(100)
    waits = [many.died(progress=False) for _ in range(9)]
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


@pytest.mark.parametrize(
    ("ended", "words", "user", "slow"),
    [
        (status(1), "vanished", False, False),
        (None, "vanished", False, False),
        (status(1, State.FAILED, signal=9), "was killed by signal 9", False, False),
        (status(1, State.FAILED, exit_code=1), "ended (FAILED)", True, False),
        (status(1, State.FAILED, signal=9, reason=UNSAVED),
         "was killed by signal 9", False, True),
        (status(1, State.CANCELLED, reason="ended by the launcher"),
         "ended (ended by the launcher)", False, False),
    ],
)  # fmt: skip
def test_a_status_shows_how_a_learner_died(ended, words, user, slow):
    assert how_it_died(ended) == words
    if ended is not None:
        assert (is_user_error(ended), is_too_slow(ended)) == (user, slow)


def test_shards_of_a_lost_node_move_to_the_nodes_with_the_fewest():
    homes = Homes(1, [0, 1, 2, 1, 2, 0, 1])
    second = without_node(homes, 1, 3)
    assert second == Homes(2, [0, 0, 2, 2, 2, 0, 0], [1])
    assert without_node(second, 2, 3) == Homes(3, [0] * 7, [1, 2])
    assert at_the_end(second) == dataclasses.replace(second, generation=3, ended=True)


def test_the_secret_is_made_once_and_only_its_user_can_read_it(tmp_path):
    (tmp_path / contract.attempt_dir(1)).mkdir(parents=True)
    make_secret(tmp_path, 1)
    path = tmp_path / contract.server_secret(1)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(bytes.fromhex(path.read_text())) == 32
    with pytest.raises(FileExistsError):
        make_secret(tmp_path, 1)
    (tmp_path / contract.snapshot_file(1, 0)).touch()
    (tmp_path / contract.parameters_file(1)).touch()
    remove_what_is_of_no_use(tmp_path, 1)
    assert [p.name for p in path.parent.iterdir()] == ["parameters.json"]


def test_a_node_learns_that_it_is_out_of_the_training(tmp_path):
    (tmp_path / contract.attempt_dir(1)).mkdir(parents=True)
    outside = Outside(tmp_path, 1, 60.0, node=2)
    assert outside.expelled() == ""
    write_homes(tmp_path, 1, Homes(1, [0]))
    assert outside.expelled() == ""
    write_homes(tmp_path, 1, Homes(2, [0], [2]))
    assert outside.expelled() == "its node was given up"
    assert Outside(tmp_path, 1, 60.0, node=1).expelled() == ""
    assert Outside(tmp_path, 1, 60.0).expelled() == ""
    write_homes(tmp_path, 1, Homes(3, [0], [], ended=True))
    assert outside.expelled() == "the training has ended"
    contract.write_whole(tmp_path / contract.submit_begin(2), "token")
    assert outside.expelled() == "a later attempt has taken over"


def test_a_learner_knows_how_much_of_a_halt_is_over(tmp_path, monkeypatch):
    (tmp_path / contract.attempt_dir(1)).mkdir(parents=True)
    now = [1000.0]
    monkeypatch.setattr("learner.job.directives.time.monotonic", lambda: now[0])
    monkeypatch.setattr("learner.job.directives.time.time", lambda: now[0] + 5e8)
    late = HaltTime(tmp_path, 1)
    assert not late(0.5)
    halt = Directive("halt", "halted on request", now[0] + 5e8, grace_s=20.0)
    contract.write_whole(tmp_path / contract.directive_file(1), contract.to_json(halt))
    for passed_s, expected in ((0.1, False), (4.0, False), (5.8, False), (0.2, True)):
        now[0] += passed_s
        assert late(0.5) is expected
    assert not late(0.75)
    assert HaltTime(tmp_path, 1)(0.5)  # a first call later still knows when the halt began


def test_learners_in_their_own_steps_know_their_ranks(tmp_path):
    plan = WorkerGroupJob(tmp_path, 4, nodes=2).plan
    assert first_homes(plan) == Homes(1, [0, 1])
    places = [find_ranks(plan, {"DLCTL_RANK": str(rank)}) for rank in range(4)]
    assert places == [
        Ranks(0, 4, 0, 2, 0), Ranks(1, 4, 1, 2, 0), Ranks(2, 4, 0, 2, 1), Ranks(3, 4, 1, 2, 1),
    ]  # fmt: skip
    assert not wants_mpi(plan)
    for env in ({}, {"DLCTL_RANK": "4"}, {"SLURM_PROCID": "1", "SLURM_NTASKS": "4"}):
        with pytest.raises(UserFault, match="DLCTL_RANK"):
            find_ranks(plan, env)


def test_the_hosts_of_a_job_come_from_slurm(tmp_path, monkeypatch):
    job = WorkerGroupJob.on_fake_slurm(tmp_path, 2, 2)
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1,n2")
    assert batch_system(job.plan).hosts() == ["n1", "n2"]
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    with pytest.raises(UserFault, match="The plan has 2 nodes, but the job's list 'n1' has 1"):
        batch_system(job.plan).hosts()
    alone = Job(
        tmp_path / "b", "true", launch=contract.Launch("direct", [], step_per_learner=True)
    ).plan
    assert batch_system(alone).hosts() == [os.uname().nodename]


# The verdict -------------------------------------------------------------------------------------


@pytest.fixture
def plan(tmp_path):
    return WorkerGroupJob(tmp_path, 4).plan


def ending(states, lost, **more):
    statuses = [status(rank, state) for rank, state in enumerate(states)]
    return Observed(statuses, 0, [], more.pop("request", None), {}, lost, **more)


LOST = {2: "was lost with node n2", 3: "was lost with node n2"}


def test_a_completed_training_reports_its_lost_learners(plan):
    verdict = decide(plan, ending([State.COMPLETED] * 2, LOST))
    assert (verdict.state, verdict.reason) == (
        State.COMPLETED,
        "2 of 4 learners ended with exit code 0; learners 2 and 3 were lost with node n2.",
    )


def test_a_halted_training_reports_its_lost_learners(plan):
    request = EndRequest("halt", "halted on request", 9.0)
    told = ending([State.HALTED] * 3, {3: "vanished"}, request=request)
    saved = [dataclasses.replace(one, exit_code=85) for one in told.statuses]
    verdict = decide(plan, dataclasses.replace(told, statuses=saved))
    assert verdict.state is State.HALTED
    assert verdict.reason == "Halted on request; learner 3 vanished."


@pytest.mark.parametrize(
    ("ends", "saved"),
    [({"exit_code": 85}, True), ({"signal": 12}, True), ({"signal": 15}, False),
     ({"signal": 9, "reason": "did not stop in time and was killed"}, False)],
)  # fmt: skip
def test_a_program_that_was_killed_has_not_saved(tmp_path, ends, saved):
    plan = Job(tmp_path, "python train.py").plan
    halted = [status(0, State.HALTED, **ends)]
    verdict = decide(plan, Observed(halted, 0, [], EndRequest("halt", "halted on request", 9.0)))
    assert verdict.state is State.HALTED
    assert verdict.reason == f"Halted on request{'' if saved else ', before all was saved'}."
    assert ("newest checkpoint" in verdict.hint) is not saved
    verdict = decide(plan, Observed(halted, 0, [], EndRequest("halt", "on request", 9.0),
                                          checkpoints=False))  # fmt: skip
    assert ("no checkpoint yet; start again: dlctl resume" in verdict.hint) is not saved


def test_a_halt_before_training_began_leaves_no_checkpoint_to_resume(plan):
    loop = dataclasses.replace(plan.framework, command=None, job="train.py")
    plan = dataclasses.replace(plan, framework=loop)
    told = ending([State.HALTED] * 4, {}, request=EndRequest("halt", "halted on request", 9.0))
    saved = [dataclasses.replace(one, exit_code=85) for one in told.statuses]
    told = dataclasses.replace(told, statuses=saved)
    assert decide(plan, told).hint.startswith("Continue with: dlctl resume")
    verdict = decide(plan, dataclasses.replace(told, checkpoints=False))
    assert verdict.reason == "Halted on request."
    assert verdict.hint.startswith("There is no checkpoint yet; start again: dlctl resume")


def test_a_cancelled_step_is_not_out_of_memory(tmp_path):
    """`scancel JOB.STEP`, as srun reports it: slurmstepd ends learners and watchdogs."""
    plan = Job(tmp_path, "python train.py").plan
    words = ["slurmstepd-n1: error: *** STEP 65.1 ON n1 CANCELLED AT 2026-11-22T14:40:10 ***",
             "srun: error: n1: task 0: Killed"]  # fmt: skip
    verdict = decide(plan, Observed([status(0, State.TRAINING)], 137, words, None))
    assert verdict.state is State.FAILED
    assert verdict.reason.startswith("Slurm ended the learners' step: ")
    assert verdict.hint == f"Resume from the newest checkpoint: dlctl resume {plan.training_id}"


@pytest.mark.parametrize(("line", "state"), [
    ("srun: error: n1: task 0: Out Of Memory", State.FAILED),
    ("srun: error: n1: task 0: Terminated", State.HALTED),
])  # fmt: skip
def test_out_of_memory_is_reported_even_as_the_job_is_being_ended(tmp_path, line, state):
    plan = Job(tmp_path, "python train.py").plan
    request = EndRequest("halt", "the scheduler ended the job", 9.0, terminated=True)
    verdict = decide(plan, Observed([status(0, State.TRAINING)], 137, [line], request))
    assert verdict.state is state


@pytest.mark.parametrize(
    ("terminated", "number", "state"),
    [(True, 15, State.HALTED), (True, 9, State.FAILED), (True, None, State.FAILED),
     (False, 15, State.FAILED)],
)  # fmt: skip
def test_a_learner_that_ends_with_the_whole_job_has_not_failed(plan, terminated, number, state):
    told = ending([State.CANCELLED, State.TRAINING, State.HALTED], {3: "vanished"})
    killed = status(0, State.FAILED, signal=number, reason="ended")
    request = EndRequest("halt", "the scheduler ended the job", 9.0, terminated=terminated)
    told = dataclasses.replace(told, statuses=[killed, *told.statuses[1:]], request=request)
    verdict = decide(plan, told)
    assert verdict.state is state
    if state is State.HALTED:
        assert verdict.reason == (
            "The scheduler ended the job, before all was saved; learner 3 vanished."
        )
        assert f"newest checkpoint: dlctl resume {plan.training_id}" in verdict.hint


def test_a_known_failure_overrides_its_consequences(plan):
    failure = failure_of(
        VerdictKind.UNKNOWN,
        "The server on n1 failed.",
        "Look.",
        Evidence("server", 0, "n1", 1, None),
    )
    states = [State.FAILED, State.CANCELLED, State.COMPLETED]
    verdict = decide(plan, ending(states, {3: "vanished"}, failure=failure))
    assert (verdict.state, verdict.reason, verdict.evidence) == (
        State.FAILED, failure.reason, failure.evidence,
    )  # fmt: skip
