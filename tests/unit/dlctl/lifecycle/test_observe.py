"""Every way from what is seen to what the user is told, and when the queue is asked."""

import itertools
import json
import math
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
from login_side import make_record

from dlctl import contract
from dlctl.contract import Action, Evidence, Next, State, Status, Verdict
from dlctl.lifecycle import waiting
from dlctl.lifecycle.observe import (
    Observation,
    derive,
    is_due,
    observe,
    parse_answer,
    paths_to_read,
)
from dlctl.lifecycle.waiting import QueuePace
from dlctl.record import Record
from dlctl.scheduler.base import Job, JobState
from dlctl.terminal.trainings import cells

NOW = 1_800_000_000.0
SENT = {"begun": True, "answer": (0, "7\n", "")}


def record(**values):
    return make_record(**({"job_id": "7", "state": State.PENDING, "seen_at": NOW - 100} | values))


def seen(**values):
    return Observation(now=NOW, **(SENT | values))


def job(state, word="", **values):
    return Job("7", "t-1.1", state, word or state.name, **values)


def supervisor(age_s=1.0, state=State.TRAINING, **values):
    return Status("supervisor", 0, 1, state, heartbeat_at=NOW - age_s, **values)


def verdict(state=State.COMPLETED, **values):
    return Verdict(1, "7", state, "All went well.", **values)


RUNNING, ENDING = job(JobState.RUNNING), job(JobState.ENDING)
COMPLETED, FAILED = job(JobState.COMPLETED), job(JobState.FAILED, exit_code="1:0")
CANCELLED = job(JobState.CANCELLED)
LOST = {"job_id": ""}

TABLE = [
    # what is seen, what the record says, state, a part of the reason
    ({"job": job(JobState.PENDING, reason="Priority")}, {}, State.PENDING, "first (Priority)"),
    ({"job": job(JobState.PENDING)}, {}, State.PENDING, "waiting in the queue"),
    ({"job": RUNNING}, {}, State.DEPLOYING, "the job has started"),
    ({"job": RUNNING, "cancel_asked": True}, {}, State.DEPLOYING, "is being cancelled"),
    ({"job": RUNNING, "supervisor": supervisor()}, {}, State.TRAINING, ""),
    ({"job": RUNNING, "supervisor": supervisor(state=State.STORING)}, {}, State.STORING, ""),
    ({"job": RUNNING, "supervisor": supervisor(300)}, {}, State.TRAINING, "no heartbeat for 300 s"),
    ({"job": RUNNING, "supervisor": supervisor(), "cancel_asked": True}, {}, State.TRAINING,
     "is being cancelled"),
    ({"job": RUNNING, "supervisor": supervisor(), "halt_asked": True}, {}, State.TRAINING,
     "is being halted"),
    # The verdict may say that another attempt follows: until it is there, nothing has ended.
    ({"job": RUNNING, "supervisor": supervisor(state=State.FAILED)}, {"state": State.TRAINING},
     State.TRAINING, "the attempt is ending"),
    ({"job": RUNNING, "supervisor": supervisor(state=State.HALTED), "halt_asked": True},
     {"state": State.PENDING}, State.DEPLOYING, "is being halted"),
    ({"job": job(JobState.SUSPENDED), "supervisor": supervisor(300)}, {}, State.TRAINING,
     "suspended"),
    ({"job": ENDING, "supervisor": supervisor()}, {}, State.TRAINING, ""),
    # a verdict is the last word, whatever the scheduler says
    ({"verdict": verdict(), "job": RUNNING}, {}, State.COMPLETED, "All went well."),
    ({"verdict": verdict(State.HALTED), "job": FAILED}, {}, State.HALTED, ""),
    ({"verdict": verdict(), "queue_answered": False}, {}, State.COMPLETED, ""),
    ({"verdict": verdict(State.FAILED, evidence=Evidence("learner", 3, "n2", 1, None))}, {},
     State.FAILED, "(learner 3 on n2)"),
    ({"verdict": verdict(State.FAILED, evidence=Evidence("server", 1, "n2", 3, None))}, {},
     State.FAILED, "(server 1 on n2)"),
    # the job is over, and there is no verdict
    ({"job": FAILED}, {}, State.FAILED, "exit code 1:0"),
    ({"job": COMPLETED, "supervisor": supervisor(300)}, {}, State.FAILED, "without a verdict"),
    ({"job": COMPLETED, "supervisor": supervisor(2)}, {}, State.TRAINING,
     "its job has ended, and the supervisor's heartbeat is 2 s old; once that is 10 s"),
    ({"job": job(JobState.TIMEOUT)}, {}, State.FAILED, "time limit"),
    ({"job": job(JobState.OUT_OF_MEMORY)}, {}, State.FAILED, "more memory"),
    ({"job": job(JobState.NODE_FAIL)}, {}, State.FAILED, "a node was lost"),
    ({"job": job(JobState.PREEMPTED)}, {}, State.HALTED, "preempted before all was saved"),
    ({"job": CANCELLED}, {}, State.CANCELLED, "not by this dlctl"),
    ({"history": job(JobState.DROPPED, "CANCELLED"), "claim": "7"}, {}, State.FAILED,
     "Slurm itself ended the job, as when its controller has lost its state (CANCELLED)"),
    ({"history": job(JobState.DROPPED, "CANCELLED"), "cancel_asked": True}, {}, State.CANCELLED,
     "cancelled"),
    ({"job": job(JobState.OUT_OF_MEMORY), "halt_asked": True, "claim": "7"}, {}, State.HALTED,
     "halted: the job ended before it could save: the job used more memory"),
    ({"job": CANCELLED, "cancel_asked": True}, {}, State.CANCELLED, "cancelled"),
    ({"job": FAILED, "cancel_asked": True}, {}, State.CANCELLED, "cancelled"),
    ({"job": CANCELLED, "halt_asked": True}, {}, State.HALTED, "halted before it started"),
    ({"job": CANCELLED, "halt_asked": True, "cancel_asked": True}, {}, State.CANCELLED, ""),
    ({"job": CANCELLED, "halt_asked": True, "claim": "7"}, {}, State.HALTED, "it could save"),
    # the queue has forgotten it, the accounting has not
    ({"history": FAILED}, {}, State.FAILED, "exit code 1:0"),
    ({"history": CANCELLED, "cancel_asked": True}, {}, State.CANCELLED, ""),
    # nobody knows it
    ({"supervisor": supervisor(10)}, {}, State.TRAINING, ""),
    ({"supervisor": supervisor(100)}, {}, State.FAILED, "left the queue without a verdict"),
    ({}, {}, State.FAILED, "left the queue without a verdict"),
    ({}, {"seen_at": NOW - 3}, State.PENDING, ""),
    ({"claim": "7"}, {"seen_at": NOW - 3}, State.PENDING, ""),
    ({"cancel_asked": True}, {}, State.CANCELLED, "cancelled"),
    ({"halt_asked": True}, {}, State.HALTED, "halted before it started"),
    # somebody removed the directory; parts may have come back since
    ({"exists": False}, {}, State.FAILED, "job directory is gone"),
    ({"exists": False, "begun": False, "answer": None}, {}, State.FAILED, "directory is gone"),
    ({"exists": False, "verdict": verdict(State.FAILED)}, {}, State.FAILED, "directory is gone"),
    ({"exists": False, "job": FAILED}, {}, State.FAILED, "directory is gone"),
    ({"exists": False, "supervisor": supervisor()}, {}, State.FAILED, "directory is gone"),
    ({"exists": False, "job": RUNNING, "supervisor": supervisor()}, {"state": State.TRAINING},
     State.TRAINING, "directory is gone from the site, so the job is ending"),
    ({"exists": False, "job": job(JobState.PENDING)}, {}, State.PENDING, "waiting in the queue"),
    # a resumption that came while the directory was pruned: it waited for ever
    ({"exists": False, "begun": False, "answer": None}, LOST | {"attempt": 2}, State.FAILED,
     "directory is gone"),
    # an interrupted submission
    ({"exists": False, "begun": False, "answer": None}, LOST, State.QUEUED, "nothing was sent"),
    ({"begun": False, "answer": None}, LOST, State.QUEUED, "before the scheduler was asked"),
    ({"begun": False, "answer": None}, LOST | {"reason": "the submission was interrupted: 401"},
     State.QUEUED, "the submission was interrupted: 401"),
    ({"answer": None}, LOST, State.QUEUED, "answer was lost"),
    ({"answer": None, "fenced": True}, LOST, State.QUEUED, "answer was lost"),
    ({"answer": None, "job": RUNNING}, LOST, State.DEPLOYING, ""),
    ({"begun": False, "answer": None, "cancel_asked": True, "fenced": True}, LOST,
     State.CANCELLED, "before it was submitted"),
    ({"begun": False, "answer": None, "halt_asked": True, "fenced": True}, LOST,
     State.HALTED, "before it started"),
    ({"exists": False, "begun": False, "answer": None, "cancel_asked": True, "fenced": True}, LOST,
     State.CANCELLED, "before it was submitted"),
]  # fmt: skip


@pytest.mark.parametrize(("look", "known", "state", "reason"), TABLE)
def test_what_is_seen_gives_the_state(look, known, state, reason):
    told = derive(record(**known), seen(**look), NOW)
    assert told.state is state
    assert reason in told.reason
    assert told.stale_since is None


HELD = job(JobState.PENDING, reason="job requeued in held state")
BY_SLURM = Action(Next.CONTINUE, "it goes on", 2, starter="requeue")
PUT_BACK = Verdict(1, "7", State.HALTED, "It was requeued.", action=BY_SLURM)


@pytest.mark.parametrize(("look", "state", "reason", "due"), [
    ({"job": HELD}, State.QUEUED, "you or an administrator requeued and held it", False),
    ({"job": CANCELLED}, State.CANCELLED, "was cancelled, but not by this dlctl", False),
    ({"history": CANCELLED}, State.CANCELLED, "was cancelled, but not by this dlctl", False),
    ({"history": job(JobState.DROPPED)}, State.QUEUED, "attempt 2 starts", True),
    ({}, State.QUEUED, "attempt 2 starts", True),
])  # fmt: skip
def test_a_job_that_slurm_has_put_back_is_waited_for_unless_it_is_gone(look, state, reason, due):
    observation = seen(verdict=PUT_BACK, claim="7", goes_on=True, **look)
    known = derive(make_record(job_id="7"), observation, NOW)
    assert (known.state, is_due(known, observation)) == (state, due)
    assert reason in known.reason
    assert "scontrol release 7" in known.hint or look.get("job") is not HELD


@pytest.mark.parametrize(("age_s", "hint"), [
    (200, ""), (400, "dlctl cancel t-1; dlctl resume t-1"),
])  # fmt: skip
def test_a_job_whose_first_node_was_lost_may_run_for_ever(age_s, hint):
    assert derive(record(), seen(job=RUNNING, supervisor=supervisor(age_s)), NOW).hint == hint


def test_every_final_word_of_a_scheduler_has_an_ending():
    for state in JobState:
        told = derive(record(), seen(job=job(state)), NOW)
        assert told.state.final is state.final, state
        assert told.job_id == "7"


@pytest.mark.parametrize("known", [s for s in State if not s.final])
@pytest.mark.parametrize("place", ["job", "history"])
def test_a_word_that_nobody_knows_ends_nothing(known, place):
    word = job(JobState.UNKNOWN, "QUANTUM_LEAP")
    told = derive(record(state=known), seen(**{place: word}), NOW)
    assert told.state is known
    assert "'QUANTUM_LEAP'" in told.reason


@pytest.mark.parametrize("known", list(State))
def test_a_silent_queue_fails_nothing(known):
    names = ("begun", "claim", "halt_asked", "cancel_asked", "exists", "supervisor")
    no_yes = [False, True]
    for values in itertools.product(no_yes, ["", "7"], *[no_yes] * 3, [None, supervisor(300.0)]):
        found = dict(zip(names, values, strict=True))
        look = Observation(NOW, queue_answered=False, queue_problem="no controller", **found)
        told = derive(record(state=known), look, NOW)
        assert (told.state, told.stale_since) == (known, NOW), found
        assert derive(told, look, NOW + 50).stale_since == NOW, found
        assert derive(told, seen(job=RUNNING), NOW + 60).stale_since is None, found


def test_a_record_that_was_just_made_is_not_failed_by_a_poll_beside_it():
    fresh = record(seen_at=0.0, created_at="2027-01-15T08:00:00.000+00:00")  # NOW, in UTC
    assert derive(fresh, seen(claim="7"), NOW + 1) == replace(fresh, job_id="7")
    assert derive(fresh, seen(claim="7"), NOW + 100).state is State.FAILED
    damaged = replace(fresh, created_at="?")
    assert derive(damaged, seen(), NOW).state is State.FAILED, "a damaged date is old"


def files_of(known, **contents):
    names = dict(zip(
        ("plan", "begin", "answer", "claim", "status", "verdict", "cancel", "halt", "learner",
         "following"),
        paths_to_read(known), strict=True,
    ))  # fmt: skip
    return {path: contents.get(name) for name, path in names.items()}


def test_how_far_a_training_has_come_is_read_with_its_state():
    known = record()
    learner = Status("learner", 0, 1, State.TRAINING, epoch=3, step=70, metrics={"loss": 0.25})
    plan = json.dumps({"training": {"epochs": 8}, "framework": {"job": "train.py"}}).encode()
    files = files_of(
        known, plan=plan, status=contract.to_json(supervisor(started_at=NOW - 60)).encode(),
        learner=contract.to_json(learner).encode(),
    )  # fmt: skip
    known = derive(known, replace(observe(known, files, NOW), job=RUNNING), NOW)
    assert (known.epoch, known.epochs, known.step, known.loss) == (3, 8, 70, 0.25)
    assert (known.started_at, known.ended_at) == (NOW - 60, 0.0)
    told = seen(verdict=verdict(finished_at=NOW - 5), supervisor=supervisor(started_at=NOW - 60))
    ended = derive(known, told, NOW)
    assert (ended.epoch, ended.loss, ended.ended_at) == (3, 0.25, NOW - 5)
    loading = supervisor(state=State.DOWNLOADING, done=0.25)
    assert derive(record(), seen(job=RUNNING, supervisor=loading), NOW).moved == 0.25
    trains = derive(record(moved=0.25), seen(job=RUNNING, supervisor=supervisor()), NOW)
    assert trains.moved is None, "the share of the data is known while it moves"


def test_what_the_supervisor_reads_in_a_log_stands_in_for_a_learner_that_reports_nothing():
    told = supervisor(
        0.0, epoch=3, step=70, metrics={"loss": None, "done": 0.25}, started_at=NOW - 100
    )
    silent = Status("learner", 0, 1, State.TRAINING)
    known = derive(record(loss=0.5), seen(job=RUNNING, supervisor=told, learner=silent), NOW)
    assert (known.epoch, known.step) == (3, 70) and math.isnan(known.loss)
    assert (known.done, known.ends_at) == (0.25, NOW + 300)
    assert known.plain()["loss"] is None
    again = contract.from_plain(Record, json.loads(json.dumps(asdict(known))))
    assert "nan" in cells(again, NOW)["loss"]
    speaks = Status("learner", 0, 1, State.TRAINING, epoch=4, step=80, metrics={"loss": 0.25})
    known = derive(known, seen(job=RUNNING, supervisor=told, learner=speaks), NOW)
    assert (known.epoch, known.step, known.loss) == (4, 80, 0.25)


@pytest.mark.parametrize(("printed", "progressed", "shown"), [
    (NOW - 400, 0.0, True), (NOW - 200, 0.0, False), (NOW - 400, NOW - 10, False),
    (0.0, 0.0, False),
])  # fmt: skip
def test_a_program_that_has_long_printed_nothing_is_named(printed, progressed, shown):
    status = Status("learner", 0, 1, State.TRAINING, printed_at=printed, progressed_at=progressed)
    known = derive(record(), seen(job=RUNNING, supervisor=supervisor(), learner=status), NOW)
    assert known.state is State.TRAINING
    assert known.reason.startswith("it has printed nothing since ") is shown


def test_files_are_read_into_an_observation():
    known = record()
    look = observe(known, files_of(
        known, plan=b"{}", begin=b"t-1.1\n", answer=b"0\n2\n7\nwarned", claim=b"7\n",
        status=contract.to_json(supervisor()).encode(), halt=b"",
        verdict=contract.to_json(verdict()).encode(),
    ), NOW)  # fmt: skip
    assert look == seen(answer=(0, "7\n", "warned"), claim="7", supervisor=supervisor(),
                        verdict=verdict(), halt_asked=True, goes_on=False)  # fmt: skip


ENDED_WELL = "All went well; its job directory is gone from the site"


@pytest.mark.parametrize(("known", "state", "reason"), [
    (State.COMPLETED, State.COMPLETED, ENDED_WELL), (State.CANCELLED, State.CANCELLED, ENDED_WELL),
    (State.FAILED, State.FAILED, ENDED_WELL),
    (State.HALTED, State.FAILED, "its job directory is gone from the site"),  # and its checkpoints
])  # fmt: skip
def test_a_purge_changes_only_how_a_halted_training_ended(known, state, reason):
    found = record(state=known, reason="All went well.")
    for _ in range(2):  # the second look adds nothing
        found = derive(found, seen(exists=False), NOW)
        assert (found.state, found.reason) == (state, reason)


@pytest.mark.parametrize(("told", "host", "more"), [
    ("No PMI on n1 (learner 0).", "n1", ""), ("Learner 0 failed.", "n1", ""),
    ("Learner 01 failed.", "n1", " (learner 0 on n1)"), ("No PMI.", "n1", " (learner 0 on n1)"),
    ("No answer.", "", " (learner 0)"),  # it never began
])  # fmt: skip
def test_the_learner_at_fault_is_named_once(told, host, more):
    evidence = Evidence("learner", 0, host, 1, None)
    look = seen(verdict=Verdict(1, "7", State.FAILED, told, "", evidence))
    assert derive(record(), look, NOW).reason == told + more


def test_a_silent_queue_hides_neither_a_living_training_nor_the_reason_of_an_end():
    told = derive(record(), seen(queue_answered=False, supervisor=supervisor(1)), NOW)
    assert (told.state, told.stale_since) == (State.TRAINING, None)
    ended = record(state=State.FAILED, reason="a node was lost")
    assert derive(ended, seen(queue_answered=False), NOW).reason == "a node was lost"


def test_files_that_are_missing_damaged_or_our_own_say_nothing():
    known = record()
    assert observe(known, files_of(known), NOW) == Observation(NOW, exists=False)
    fenced = observe(known, files_of(known, claim=b"nobody\n"), NOW)
    assert (fenced.claim, fenced.fenced) == ("", True)
    for damaged in (b"", b"{", b"[]", b'{"state": "DANCING"}', b"\xff\xfe"):
        look = observe(known, files_of(known, plan=b"{}", status=damaged, verdict=damaged), NOW)
        assert (look.supervisor, look.verdict) == (None, None), damaged
    assert "/data/dl/jobs/t-1/attempts/3/verdict.json" in paths_to_read(record(attempt=3))


@pytest.mark.parametrize(("content", "answer"), [
    *((each, None) for each in (None, b"", b"0", b"0\n1", b"x\ny\nz", b"0\n\nout", b"\n\n\n")),
    (b"1\n3\na\nbsbatch: no\n", (1, "a\nb", "sbatch: no\n")),
])  # fmt: skip
def test_an_answer_is_cut_by_its_length_and_an_incomplete_one_is_none(content, answer):
    assert parse_answer(content) == answer


# How long it has run: by the site's clock, over all attempts -------------------------------------


def supervised(known, **contents):
    found = dict.fromkeys(paths_to_read(known))
    for name, value in contents.items():
        attempt = int(name.rpartition("_")[2])
        path = f"{known.job_dir}/{contract.status_file(attempt, 'supervisor', 0)}"
        found[path] = contract.to_json(value).encode()
    return found


@pytest.mark.parametrize("ahead_s", [0.0, 3.0, 400 * 86400.0, -7200.0])
def test_a_clock_that_is_off_does_not_change_how_long_a_training_has_run(ahead_s):
    """A laptop whose clock was off by 400 days showed 400 days."""
    known, wall_s = record(state=State.TRAINING), NOW + ahead_s
    running = supervisor(started_at=NOW - 600)
    look = replace(seen(job=RUNNING, supervisor=running), claim="7")
    known = derive(known, look, wall_s)
    assert known.elapsed_s(wall_s) == pytest.approx(600, abs=5)
    assert known.elapsed_s(wall_s + 60) == pytest.approx(660, abs=5)
    # An answer that took a moment longer is no change.
    again = derive(known, replace(look, now=NOW + 58), wall_s + 60)
    assert replace(again, seen_at=known.seen_at) == known


def test_what_earlier_attempts_ran_counts_and_is_read_once():
    """After `dlctl resume` a training seemed to be younger than before."""
    first = Status("supervisor", 0, 1, State.HALTED, started_at=NOW - 1000, heartbeat_at=NOW - 700)
    third = Status("supervisor", 0, 3, State.TRAINING, started_at=NOW - 50, heartbeat_at=NOW)
    known = record(state=State.TRAINING, attempt=3)
    look = observe(known, supervised(known, supervisor_1=first, supervisor_3=third), NOW)
    known = derive(known, replace(look, job=RUNNING), NOW)
    assert (known.ran_before_s, known.ran_through) == (300, 2)
    assert known.elapsed_s(NOW) == 350
    assert not any("attempts/1/" in path for path in paths_to_read(known))
    look = observe(known, supervised(known, supervisor_3=third), NOW)
    assert derive(known, replace(look, job=RUNNING), NOW).elapsed_s(NOW) == 350
    assert record(started_at=NOW - 9, state=State.FAILED).elapsed_s(NOW) is None


# When a client that stays asks the queue: by a clock of the test's own ---------------------------

LIVES = Observation(
    now=NOW, claim="7", supervisor=Status("supervisor", 0, 1, State.TRAINING, heartbeat_at=NOW)
)
LATE = replace(LIVES, now=NOW + 60)
WAITS = Observation(now=NOW)
TOLD = replace(LATE, verdict=Verdict(1, "7", State.COMPLETED, "All went well."))


@pytest.fixture
def asked(monkeypatch):
    """Look every two seconds for so long, and return the seconds at which the queue was asked."""
    clock = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    pace = QueuePace()

    def look(shown, state, for_s):
        records = [replace(make_record(state=state), training_id=name) for name in shown]
        found, begin = [], clock.now_s
        while clock.now_s < begin + for_s:
            if pace.asks(records, shown):
                found.append(clock.now_s - begin)
            clock.now_s += 2.0
        return found

    return look


def test_while_jobs_live_the_queue_is_never_asked(asked):
    assert asked({"t-1": LIVES, "t-2": LIVES}, State.TRAINING, 3600) == []


def test_an_end_that_a_verdict_tells_needs_no_queue(asked):
    assert asked({"t-1": TOLD}, State.COMPLETED, 3600) == []


def test_a_late_heartbeat_is_asked_about_at_once_then_every_quarter_of_a_minute(asked):
    assert asked({"t-1": LIVES}, State.TRAINING, 100) == []
    assert asked({"t-1": LATE, "t-2": LIVES}, State.TRAINING, 60) == [0, 4, 20, 36, 52]


def test_jobs_that_wait_are_asked_about_less_and_less(asked):
    assert asked({"t-1": WAITS, "t-2": WAITS}, State.PENDING, 300) == [
        0, 4, 20, 50, 110, 170, 230, 290,
    ]  # fmt: skip


def test_what_changes_is_asked_about_soon_and_what_stays_ended_no_more(asked):
    asked({"t-1": WAITS}, State.PENDING, 300)
    assert asked({"t-1": replace(WAITS, claim="7")}, State.PENDING, 10) == [0, 4]
    assert asked({"t-1": replace(WAITS, claim="7")}, State.FAILED, 600) == []


@pytest.mark.parametrize(
    "shown",
    [
        replace(LIVES, exists=False),
        replace(LIVES, next_begun=True),
        replace(LIVES, supervisor=replace(LIVES.supervisor, state=State.FAILED)),
        replace(TOLD, verdict=replace(TOLD.verdict, action=Action(Next.RETRY, "it", 2))),
    ],
    ids=["its folder is gone", "another attempt", "the supervisor ends", "it goes on"],
)
def test_files_that_prove_nothing_are_no_reason_not_to_ask(asked, shown):
    assert asked({"t-1": shown}, State.TRAINING, 2) == [0]
