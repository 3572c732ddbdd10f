"""What Slurm 22.05 said of real jobs at the moment in which it ended them."""

import dataclasses

import pytest
from node_job import Job

from dlctl.contract import Batch, Evidence, Launch, State, VerdictKind
from learner.errors import SiteFault, UserFault
from learner.job.batch import UNEXPLAINED, batch_system
from learner.job.batch.slurm import read_ending as read
from learner.job.outcome import Outcome, Question, failed, fault_outcome

K = VerdictKind
HEAD = "JobId=3 JobName=words.sh UserId=dluser(20001) Priority=4294901757 Account=dl QOS=normal "
TIMES = "StartTime=2026-11-24T02:52:07 EndTime=2026-11-24T02:52:08 Deadline=N/A "
ENDING = HEAD + "JobState=COMPLETING Reason=None Dependency=(null) Requeue=0 ExitCode=0:0 " + TIMES
PREEMPTED = (
    ENDING + "PreemptEligibleTime=2026-11-24T02:52:02 PreemptTime=2026-11-24T02:52:03 "
    "SuspendTime=None"
)
REQUEUED = ENDING.replace("Requeue=0", "Requeue=1 Restarts=1")
HELD = REQUEUED.replace("Priority=4294901757", "Priority=0").replace(
    "Reason=None", "Reason=job_requeued_in_held_state"
)
RUNNING = ENDING.replace("COMPLETING", "RUNNING")
OVER_TIME = ENDING.replace("Reason=None", "Reason=TimeLimit")


@pytest.mark.parametrize(
    ("text", "kind", "state", "why"),
    [
        (PREEMPTED, K.PREEMPTED, "PREEMPTED", "another job preempted it"),
        (PREEMPTED.replace("COMPLETING", "RUNNING"), K.PREEMPTED, "PREEMPTED", "another job"),
        (ENDING, K.CANCELLED, "CANCELLED", "somebody cancelled it by scancel"),
        (ENDING + "PreemptTime=None", K.CANCELLED, "CANCELLED", "scancel"),
        (REQUEUED, K.PREEMPTED, "REQUEUED", "it is in the queue again"),
        (HELD, K.PREEMPTED, "REQUEUED", "somebody, perhaps an administrator, has requeued"),
        (OVER_TIME, K.TIME_LIMIT, "TIMEOUT", "its time limit was reached"),
        (ENDING.replace("COMPLETING", "NODE_FAIL"), K.NODE_LOST, "NODE_FAIL", "was lost"),
        (ENDING.replace("COMPLETING", "RUNNING"), K.SCHEDULER, "RUNNING", UNEXPLAINED),
        (ENDING.replace("COMPLETING", "NEW_WORD"), K.SCHEDULER, "NEW_WORD", UNEXPLAINED),
    ],
)
def test_slurms_answer_says_why_it_ends_the_job(text, kind, state, why):
    word = read(text)
    assert (word.kind, word.state) == (kind, state)
    assert why in word.sentence


def test_a_job_that_was_restarted_before_is_not_requeued_again():
    assert read(REQUEUED, restarts=1).kind == K.CANCELLED


def test_an_error_is_no_answer():
    assert read("") is None
    assert read("slurm_load_jobs error: Unable to contact slurm controller") is None


@pytest.fixture(autouse=True)
def _slow_machine(monkeypatch):
    monkeypatch.setattr("learner.job.batch.slurm.ENDING_TIMEOUT_S", 60.0)
    monkeypatch.setattr("learner.job.outcome.WAIT_S", 60.0)


HALTED = Outcome(State.HALTED, K.SCHEDULER, UNEXPLAINED.capitalize() + ", before all was saved.")


def ask(tmp_path, script, outcome, early_s=0.0):
    """Return an outcome after asking a `scontrol` that is this script."""
    for name, text in (("srun", "exit 0"), ("scontrol", script)):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    launch = Launch("srun", [str(tmp_path / "srun")])
    plan = Job(tmp_path / "job", None, job="t.py", launch=launch).plan
    plan = dataclasses.replace(plan, batch=Batch("slurm"))
    return Question(batch_system(plan), early_s).explain(outcome)


def test_the_verdict_tells_slurms_word(tmp_path):
    told = ask(tmp_path, f"echo '{PREEMPTED}'", HALTED)
    assert told.reason == (
        "The scheduler ended the job: another job preempted it, before all was saved."
    )
    assert (told.kind, told.state) == (K.PREEMPTED, State.HALTED)
    assert told.evidence == Evidence(scheduler_state="PREEMPTED")


def test_a_learners_own_words_count_more_than_slurms(tmp_path):
    broken = failed(K.USER_ERROR, "Learner 0 failed: no.", "Look.", Evidence("learner", 0, "n1"))
    told = ask(tmp_path, f"echo '{OVER_TIME}'", broken)
    assert (told.kind, told.reason) == (broken.kind, broken.reason)
    assert told.evidence == dataclasses.replace(
        broken.evidence, scheduler_state="TIMEOUT", scheduler_reason="TimeLimit"
    )


@pytest.mark.parametrize("script", ["exit 1", "echo 'error: no controller' >&2; exit 1"])
def test_without_an_answer_the_verdict_stays(tmp_path, script):
    assert ask(tmp_path, script, HALTED) == HALTED


def test_a_controller_that_hangs_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr("learner.job.outcome.WAIT_S", 0.05)
    assert ask(tmp_path, "exec sleep 1", HALTED) == HALTED


@pytest.mark.parametrize(
    ("reason", "kind", "text", "now"),
    [
        ("The learners saved and stopped.", K.REQUESTED, OVER_TIME, K.TIME_LIMIT),
        ("The learners saved and stopped.", K.REQUESTED, RUNNING, K.REQUESTED),
        ("Halted by a signal.", K.REQUESTED, PREEMPTED, K.PREEMPTED),
        ("Halted by a signal.", K.REQUESTED, ENDING, K.REQUESTED),
        ("Halted on request.", K.REQUESTED, PREEMPTED, K.REQUESTED),
        ("The time limit is near.", K.TIME_LIMIT, ENDING, K.TIME_LIMIT),
        ("Learner 0 on n1 was killed by signal 15 (SIGTERM).", K.SCHEDULER, OVER_TIME,
         K.TIME_LIMIT),
    ],
)  # fmt: skip
def test_slurms_word_counts_only_where_nothing_better_is_known(tmp_path, reason, kind, text, now):
    told = ask(tmp_path, f"echo '{text}'", Outcome(State.HALTED, kind, reason))
    assert told.kind == now
    assert ("scheduler" in told.reason) == (now != kind and "Learner 0" not in reason)


@pytest.mark.parametrize(
    ("times", "kind"),
    [
        ("RunTime=00:00:25 TimeLimit=00:01:00", K.TIME_LIMIT),  # an administrator shortened it
        ("RunTime=1-00:00:25 TimeLimit=1-00:01:00", K.TIME_LIMIT),
        ("RunTime=00:00:25 TimeLimit=01:00:00", K.REQUESTED),
        ("RunTime=00:00:25 TimeLimit=UNLIMITED", K.REQUESTED),
        ("", K.REQUESTED),
    ],
)
def test_a_signal_near_slurms_own_limit_is_its_warning(tmp_path, times, kind):
    halted = Outcome(State.HALTED, K.REQUESTED, "Halted by a signal, before all was saved.")
    told = ask(tmp_path, f"echo '{RUNNING} {times}'", halted, early_s=90.0)
    assert told.kind == kind
    if kind is K.TIME_LIMIT:
        assert told.reason == (
            "The scheduler signalled that the time limit is near, before all was saved."
        )


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (UserFault("train.py has no function build"), K.USER_ERROR),
        (SiteFault("The node's Python lacks the module watchdog."), K.SITE),
        (UserFault("'/data' can't be copied: No space left on device"), K.DISK_FULL),
        (SiteFault("The results can't be indexed: Disk quota exceeded"), K.DISK_FULL),
    ],
)
def test_a_fault_has_a_kind(fault, kind):
    assert fault_outcome(fault).kind == kind
