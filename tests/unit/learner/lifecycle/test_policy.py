"""What follows an attempt that has ended."""

import dataclasses
import json
from dataclasses import replace

import pytest
from node_job import Job

from dlctl import contract
from dlctl.contract import (
    Action,
    Evidence,
    Lifecycle,
    Made,
    Next,
    OutputPlace,
    State,
    Verdict,
    VerdictKind,
)
from learner.lifecycle.next_attempt import remember_bad_nodes
from learner.lifecycle.policy import decide

NOW = 1000.0
RETRY = Action(Next.RETRY, "")


def ended(attempt, kind, progress=5, **more):
    state = more.pop("state", State.FAILED)
    action = None if more.pop("newest", False) else RETRY
    return Verdict(
        attempt, "7", state, "why", kind=kind, progress=progress,
        **{"action": action, "step": attempt * 10, **more},
    )  # fmt: skip


def after(*verdicts, by_a_person=False, chance=0.5, **lifecycle):
    policy = Lifecycle(**lifecycle)
    return decide(policy, verdicts, NOW, chance, by_a_person=by_a_person)


@pytest.mark.parametrize("kind", [
    VerdictKind.NODE_LOST, VerdictKind.NETWORK, VerdictKind.GPU_ERROR, VerdictKind.HUNG,
    VerdictKind.DISK_FULL, VerdictKind.SCHEDULER, VerdictKind.SITE, VerdictKind.UNKNOWN,
])  # fmt: skip
def test_a_fault_of_the_infrastructure_is_retried_while_there_is_a_checkpoint(kind):
    action = after(ended(1, kind))
    assert (action.kind, action.attempt, action.why) == (
        Next.RETRY, 2, "retry 1 of 3, from the newest checkpoint",
    )  # fmt: skip
    assert after(ended(1, kind, progress=-1)).kind is Next.STOP
    begins_again = after(ended(1, kind, progress=-1), retries=1)
    assert begins_again.why == "retry 1 of 1, from the beginning: there is no checkpoint"


def test_a_training_that_is_done_is_retried_to_store_its_results():
    """Nothing is lost by that, whether or not there is a checkpoint."""
    lost = ended(1, VerdictKind.UNKNOWN, progress=-1)
    action = decide(Lifecycle(), [lost], NOW, 0.5, has_trained=True)
    assert action.kind is Next.RETRY
    assert action.why == "retry 1 of 3, which only stores the results"
    refused = ended(1, VerdictKind.USER_ERROR, progress=-1)
    action = decide(Lifecycle(), [refused], NOW, 0.5, has_trained=True)
    assert action.kind is Next.STOP
    action = decide(Lifecycle(retries=0), [lost], NOW, 0.5, has_trained=True)
    assert action.why == "no retries are allowed"


@pytest.mark.parametrize("kind", [
    VerdictKind.USER_ERROR, VerdictKind.NOT_A_NUMBER, VerdictKind.GPU_OUT_OF_MEMORY,
])  # fmt: skip
def test_what_would_happen_again_is_never_retried(kind):
    assert after(ended(1, kind), retries=9).kind is Next.STOP


def test_a_program_that_asks_for_another_attempt_needs_no_checkpoint():
    """Exit code 75: a license server was busy, for example, before training began."""
    busy = VerdictKind.TRY_AGAIN
    action = after(ended(1, busy, progress=-1))
    assert (action.kind, action.not_before) == (Next.RETRY, NOW + 10)
    assert after(ended(1, busy, progress=-1), retries=0).why == "no retries are allowed"
    again = after(ended(1, busy, progress=-1), ended(2, busy, progress=-1), retries=1)
    assert again.why == "the one retry has been used"
    alike = [ended(n, busy, progress=-1, step=1) for n in (1, 2, 3)]
    assert after(*alike).why == "retry 3 of 3, from the beginning: there is no checkpoint"
    assert after(*alike, ended(4, busy, progress=-1)).kind is Next.STOP


@pytest.mark.parametrize("kind", [VerdictKind.TIME_LIMIT, VerdictKind.PREEMPTED])
def test_what_goes_on_without_a_checkpoint_is_not_said_to_have_one(kind):
    action = after(ended(1, kind, progress=-1))
    assert action.kind is Next.CONTINUE
    assert action.why == "the training begins again: it has written no checkpoint"
    assert after(ended(1, kind)).why == "the training continues from its newest checkpoint"
    stores = decide(Lifecycle(), [ended(1, kind, progress=-1)], NOW, has_trained=True)
    assert stores.why == "the training is done, and its results are stored"


def test_no_chain_of_jobs_is_for_a_program_that_saves_nothing():
    """Each job began anew, so that the training would never end."""
    lost = ended(1, VerdictKind.TIME_LIMIT, -1, state=State.HALTED, made=Made())
    assert "before the program had saved anything" in after(lost).why
    assert after(lost, retries=1).goes_on
    own = Made(output=[OutputPlace("out", 1, 5)])
    for other in (replace(lost, made=own), replace(lost, step=-1), replace(lost, made=None),
                  replace(lost, kind=VerdictKind.PREEMPTED)):  # fmt: skip
        assert after(other).kind is Next.CONTINUE


@pytest.mark.parametrize("kind", [VerdictKind.TIME_LIMIT, VerdictKind.PREEMPTED])
def test_the_end_of_a_job_is_no_fault(kind):
    many = [ended(n, kind, n, state=State.HALTED) for n in range(1, 50)]
    action = after(*many, retries=0)
    assert (action.kind, action.attempt, action.not_before) == (Next.CONTINUE, 50, NOW)


def test_retries_are_counted_over_all_attempts():
    faults = [ended(n, VerdictKind.NODE_LOST, n) for n in range(1, 5)]
    assert after(*faults[:3]).why == "retry 3 of 3, from the newest checkpoint"
    assert after(*faults).why == "all 3 retries have been used"
    assert after(*faults, retries=4).kind is Next.RETRY
    assert after(faults[0], retries=0).why == "no retries are allowed"
    for kind in (Next.CONTINUE, Next.STOP):  # the last job's end, a person's resume
        faults[1] = replace(faults[1], action=Action(kind, ""))
        assert after(*faults).why == "retry 2 of 3, from the newest checkpoint"


def test_the_delay_grows_exponentially_with_jitter():
    for kind, expected in (
        (VerdictKind.DISK_FULL, [60, 240, 600]), (VerdictKind.UNKNOWN, [0, 4, 16]),
        (VerdictKind.NETWORK, [10, 40, 160]),
    ):  # fmt: skip
        faults = [ended(n, kind) for n in range(1, 4)]
        delays = [after(*faults[:n], retries=99).not_before - NOW for n in range(1, 4)]
        assert delays == expected
    assert after(*faults, ended(4, VerdictKind.NETWORK, 6), retries=99).not_before == NOW + 10
    assert after(faults[0], chance=0.0).not_before == NOW + 7.5
    assert after(faults[0], chance=1.0).not_before == NOW + 12.5
    assert after(faults[0], backoff_s=60.0).not_before == NOW + 60


def test_the_same_error_at_the_same_step_twice_ends_it():
    said = Evidence("learner", 0, "n1", 1, None, ["broken at 0x7f12"])
    again = Evidence("learner", 0, "n2", 1, None, ["broken at 0x9f34"])
    first = ended(1, VerdictKind.NETWORK, 5, step=12, evidence=said)
    action = after(first, ended(2, VerdictKind.NETWORK, 6, step=12, evidence=again))
    assert action == Action(Next.STOP, "attempts 1 and 2 failed alike at step 12")
    other = Evidence("learner", 0, "n1", 1, None, ["something else"])
    assert after(first, ended(2, VerdictKind.NETWORK, 6, step=12, evidence=other)).goes_on
    assert after(first, ended(2, VerdictKind.NETWORK, 6, step=13, evidence=again)).goes_on


@pytest.mark.parametrize("kind", [VerdictKind.NODE_LOST, VerdictKind.TIME_LIMIT])
def test_three_attempts_without_progress_end_it(kind):
    stuck = [ended(n, kind, 5) for n in range(1, 5)]
    assert after(*stuck[:3], retries=9).goes_on
    assert after(*stuck, retries=9).why == "the checkpoint has not advanced in 3 attempts"
    assert after(*stuck[:3], ended(4, kind, 6), retries=9).goes_on


def test_memory_is_raised_once_if_the_manifest_says_so():
    out = ended(1, VerdictKind.OUT_OF_MEMORY, progress=-1)  # no checkpoint is needed
    assert after(out).kind is Next.STOP
    action = after(out, memory_factor=1.5)
    assert (action.kind, action.memory_factor) == (Next.RETRY, 1.5)
    raised = ended(1, VerdictKind.OUT_OF_MEMORY, action=action)
    again = after(raised, ended(2, VerdictKind.OUT_OF_MEMORY, 6), memory_factor=1.5)
    assert again.why == "memory ran out again after it was raised once"


def test_a_person_ends_the_chain_for_good():
    assert after(ended(1, VerdictKind.NODE_LOST), by_a_person=True).kind is Next.NOTHING
    assert after(ended(1, VerdictKind.TIME_LIMIT), by_a_person=True).kind is Next.NOTHING
    assert after(ended(1, VerdictKind.REQUESTED, state=State.HALTED)).kind is Next.NOTHING
    assert after(ended(1, VerdictKind.CANCELLED, state=State.CANCELLED)).kind is Next.NOTHING


def test_the_nodes_that_were_blamed_are_avoided_from_then_on():
    lost = ended(1, VerdictKind.NODE_LOST, evidence=Evidence("learner", 1, "n2", None, None))
    broken = ended(2, VerdictKind.GPU_ERROR, 6, evidence=Evidence("learner", 0, "n1", 1, None))
    bug = ended(3, VerdictKind.NETWORK, 7, evidence=Evidence("learner", 0, "n3", 1, None))
    assert after(lost, broken, bug, retries=9).exclude == ["n2", "n1"]
    lost = replace(lost, finished_at=NOW - 86400 - 1)
    assert after(lost, broken, bug, retries=9).exclude == ["n1"]


def test_the_time_of_the_whole_training_ends_it():
    links = [ended(n, VerdictKind.TIME_LIMIT, n, state=State.HALTED, used_s=100) for n in (1, 2, 3)]
    assert after(*links, total_time_s=360).time_s == 60
    used_up = after(*links, total_time_s=329)
    assert used_up.kind is Next.STOP and "`time` is used up" in used_up.why
    assert after(*links).time_s is None


def test_a_plan_of_an_older_version_starts_nothing():
    assert decide(None, [ended(1, VerdictKind.NODE_LOST)], NOW).kind is Next.STOP


def test_attempts_before_a_person_resumed_do_not_count_as_attempts_in_vain():
    stopped = ended(3, VerdictKind.PREEMPTED, action=Action(Next.STOP, "no progress"))
    before = [ended(1, VerdictKind.PREEMPTED), ended(2, VerdictKind.PREEMPTED), stopped]
    assert after(*before, ended(4, VerdictKind.PREEMPTED)).kind is Next.CONTINUE


@pytest.mark.parametrize(
    ("verdict", "hosts"),
    [
        ({"kind": "site", "bad_hosts": ["n1", "n2"]}, ["n1", "n2"]),
        ({"kind": "gpu_error", "evidence": Evidence("learner", 1, "n3")}, ["n3"]),
        ({"kind": "gpu_error", "evidence": Evidence()}, []),
        ({"kind": "node_lost", "evidence": Evidence("learner", 1, "n3")}, []),
        ({"kind": "user_error", "evidence": Evidence("learner", 1, "n3")}, []),
        ({"kind": "site", "bad_hosts": ["../jobs"]}, []),
    ],
)
def test_a_file_is_written_for_each_node_to_blame(tmp_path, verdict, hosts):
    plan = Job(tmp_path, "true").plan
    plan = dataclasses.replace(plan, batch=contract.Batch("slurm"))
    found = Verdict(2, "7", State.FAILED, "It is dead.", **verdict)
    remember_bad_nodes(plan, found)
    files = sorted(tmp_path.glob(f"{contract.NODES}/*"))
    assert [file.stem for file in files] == hosts
    for file in files:
        node = json.loads(file.read_text())
        assert (node["reason"], node["attempt"]) == ("It is dead.", 2)
        assert node["expires_at"] - node["seen_at"] == contract.BAD_NODE_S


def test_a_machine_without_slurm_avoids_nothing(tmp_path):
    plan = Job(tmp_path, "true").plan
    found = Verdict(1, "7", State.FAILED, "It is dead.", kind="site", bad_hosts=["n1"])
    remember_bad_nodes(plan, found)
    assert not (tmp_path / contract.NODES).exists()
