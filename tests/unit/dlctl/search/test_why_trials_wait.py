"""Why trials wait: from the queue of the scheduler, from workers and from the search's state."""

from dataclasses import replace

import pytest
from login_side import make_record
from made_search import T0, job, overview_of, trials_of, worker

from dlctl.contract import State
from dlctl.contract.search import Task
from dlctl.search.overview import ENDED, Overview, WorkerJob, worker_jobs
from dlctl.search.waits import why_trials_wait

RUNS = make_record(state=State.TRAINING)
WAITS = [job("w1.0", "PENDING", "Resources"), job("w1.1", "PENDING", "Resources")]


def why(seen, record=RUNS):
    return why_trials_wait(seen, record)


@pytest.mark.parametrize(("trials", "workers", "jobs", "says"), [
    (trials_of(4, 2), [worker("w1.0", 2)], [job("w1.0")], None),
    (trials_of(4, 0), [], WAITS,
     "4 trials wait: 2 worker jobs are waiting in the queue: Resources"),
    (trials_of(1, 0), [], [WorkerJob("w1.*", "41", ENDED)],
     "1 trial waits: no worker is there, their jobs have ended; "
     "`dlctl search scale t-1 --workers N` sets how many there are"),
    (trials_of(2, 0), [], [job("w1.0")],
     "2 trials wait: 1 worker job has begun, and no worker has come"),
    (trials_of(5, 0), [worker("w1.0", 2)], [job("w1.0")],
     "3 trials wait: all workers are busy, with 2 trials;"),
])  # fmt: skip
def test_what_trials_wait_for(trials, workers, jobs, says):
    said = why(overview_of(trials, workers, jobs))
    assert [text[: len(says or "")] for text in said] == ([says] if says else [])


@pytest.mark.parametrize(("task", "has", "says"), [
    (Task("python", gpus=1), {}, "a trial needs 1 GPU, and w1.0 has 0"),
    (Task("python", memory_bytes=8 << 30), {}, "a trial needs 8GiB, and w1.0 has 4GiB"),
    (Task("python", labels=["a100"]), {}, "a trial needs the label 'a100', which w1.0 lacks"),
    (Task("training"), {"types": ["js"]}, "a trial is of the type python, and w1.0 runs js"),
    (Task("python", time_limit_s=3600), {"seconds_left": 600.0},
     "a trial may take 60 min, and the job of w1.0 ends in 10 min"),
])  # fmt: skip
def test_what_no_worker_has_is_named(task, has, says):
    seen = overview_of(trials_of(2, 0, task=task), [worker("w1.0", **has)], [job("w1.0")])
    assert why(seen) == [f"2 trials wait: no worker can take it: {says}"]
    able = worker("w2.0", gpus=1, memory_bytes=16 << 30, labels=["a100"], seconds_left=0.0)
    assert "can take" not in str(why(overview_of(seen.trials, [worker("w1.0", **has), able])))


@pytest.mark.parametrize(("state", "says"), [
    (State.HALTED, ["3 trials wait: the search is halted; `dlctl resume t-1` goes on"]),
    (State.PENDING, ["the hub has not begun, it is PENDING: Priority"]),
    (State.COMPLETED, []),
])  # fmt: skip
def test_the_state_of_the_search_comes_first(state, says):
    record = replace(RUNS, state=state, reason="Priority")
    assert why(overview_of(trials_of(3, 0)), record) == says
    (failed,) = why(overview_of(trials_of(0)), make_record(state=State.FAILED))
    assert failed == "nothing is tried: the search has failed; `dlctl resume t-1` goes on"


def test_a_broker_or_a_scheduler_that_is_silent_is_told():
    seen = overview_of(trials_of(2, 0), [worker("w1.0", 2)], age_s=40.0)
    assert why(seen) == ["the broker b0 was last heard of 40 s ago"]
    silent = replace(overview_of(trials_of(2, 0)), queue_problem="squeue hung")
    assert why(silent) == ["2 trials wait: the scheduler does not answer: squeue hung"]
    assert why(Overview(trials_of(2, 0), now=T0))[0] == "no broker has reported its tasks yet"


def test_workers_are_named_as_they_name_themselves():
    rows = [("41_0", "RUNNING", "None", "n1"), ("41_[1-2,5%2]", "PENDING", "Resources", ""),
            ("50", "RUNNING", "", "here"), ("77", "RUNNING", "", "")]  # fmt: skip
    found = worker_jobs({"w1": ["41"], "w2": ["50", "51"], "w3": ["60"]}, rows)
    assert [(j.name, j.state, j.reason, j.lives) for j in found] == [
        ("w1.0", "RUNNING", "", True), ("w1.1", "PENDING", "Resources", True),
        ("w1.2", "PENDING", "Resources", True), ("w1.5", "PENDING", "Resources", True),
        ("w2.0", "RUNNING", "", True), ("w2.1", ENDED, "", False), ("w3.*", ENDED, "", False),
    ]  # fmt: skip
