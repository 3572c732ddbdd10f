"""A look brings metrics and logs in one script, and a quiet training is looked at seldom."""

import json
from contextlib import closing
from dataclasses import replace
from math import inf

import pytest
from login_side import make_record
from watched_job import WatchedJob

from dlctl.contract import State
from dlctl.contract.metrics import EventKind, MetricsLine, Source
from dlctl.live.training import read_details
from dlctl.outputs.insight import insight
from dlctl.series.replays import Origin
from dlctl.series.run import Run


@pytest.fixture
def job(tmp_path, monkeypatch):
    with closing(WatchedJob(tmp_path, monkeypatch)) as job:
        job.log("hello\n")
        job.measure("", 1, loss=2.0)
        job.measure("node", 1, cpu_percent=50.0)
        job.beat()
        assert job.live.look() == {"t-1"}
        job.now_s += 1
        job.live.look()
        yield job


def test_one_script_brings_metrics_and_logs(job):
    job.log("more\n")
    job.measure("", 2, loss=1.0)
    job.transport.moved.clear()
    assert job.live.look() == {"t-1"}
    assert len(job.transport.moved) == 1
    assert job.training.lines[-1] == "learner-0 | more"
    assert job.training.metrics.run.named("loss")[0].values() == [(1, 2.0), (2, 1.0)]


def test_lines_beyond_what_a_look_reads_are_not_lost(job, monkeypatch):
    monkeypatch.setattr("dlctl.outputs.metrics.files._LOOK_BYTES", 40_000)
    for step in range(2, 2000):
        job.measure("", step, loss=1.0 / step)
    looks = 0
    while job.live.look():
        looks += 1
    assert looks > 2
    assert len(job.training.metrics.run.named("loss")[0]) == 1999


def test_a_quiet_minute_costs_less_than_a_kilobyte_a_second(job):
    """The collector and the heartbeat go on; nothing else does."""
    job.transport.moved.clear()
    begin, looks = job.now_s, job.live.looks()
    while job.now_s < begin + 60:
        job.measure("node", 1, cpu_percent=50.0)
        job.beat()
        next(looks)
    moved = sum(len(script) + len(answer) for script, answer in job.transport.moved)
    assert moved < 60_000
    assert job.training.metrics.run.named("cpu_percent")[0].values()


def test_what_happens_makes_the_looks_frequent_again(job):
    looks, pauses = job.live.looks(), []
    for step in [1] * 8 + [2, 3]:
        if step > 1:
            job.measure("", step, loss=1.0 / step)
        before = job.now_s
        next(looks)
        pauses.append(job.now_s - before)
    assert max(pauses) == 5.0
    next(looks)
    assert job.now_s - before == 2.0  # after each of two looks with news, a second


def test_details_are_read_again_soon_after_a_change_of_state_and_never_after_the_end(job):
    training, session = job.training, job.live._sites["testbed"].session

    def change(state):
        job.now_s += 1
        training.record = replace(training.record, state=state)
        assert training.details_every_s == 1.0 and training.details_are_due
        read_details(session, [training])

    assert training.details_every_s == inf, "it waits"
    change(State.TRAINING)
    assert training.details_every_s == 5.0
    job.now_s += 12
    assert training.details_every_s == 40.0
    change(State.PENDING)
    assert training.details_every_s == inf
    training.expect_news()
    change(State.COMPLETED)
    assert training.details_every_s == inf


def test_a_plateau_that_the_node_told_is_listed_once_beside_what_is_found():
    run = Run("t-1")
    for step in range(1, 101):
        values = {"learning_rate": 0.1 if step <= 60 else 0.01, "loss": max(1.0, 5 - step / 10)}
        run.add(Origin(1, 0, Source.LOOP), MetricsLine(step, 1, 1.0 * step, values))
    values = {"level": float("inf")}
    told = MetricsLine(45, None, 90.0, values, "plateau: …", kind=EventKind.PLATEAU.value)
    run.add(Origin(1, 0, Source.JOB), told)
    events = insight(run, make_record(), None, []).plain()["events"]
    assert [(e["kind"], e["step"]) for e in events] == [("plateau", 45), ("learning_rate", 60)]
    json.dumps(events, allow_nan=False)
