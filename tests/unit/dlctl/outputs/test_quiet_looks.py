"""A look brings metrics and logs in one script, and a quiet training is looked at seldom."""

from contextlib import closing

import pytest
from watched_job import WatchedJob

from dlctl.terminal.watch import next_pause_s


@pytest.fixture
def job(tmp_path, monkeypatch):
    with closing(WatchedJob(tmp_path, monkeypatch)) as job:
        job.log("hello\n")
        job.measure("", 1, loss=2.0)
        job.measure("node", 1, cpu_percent=50.0)
        job.beat()
        assert job.looks.look() == {"t-1"}
        job.now_s += 1
        job.looks.look()
        yield job


def test_one_script_brings_metrics_and_logs(job):
    job.log("more\n")
    job.measure("", 2, loss=1.0)
    job.transport.moved.clear()
    assert job.reader.refresh(job.looks.session("testbed"), job.record)
    assert len(job.transport.moved) == 1
    assert job.reader.lines[-1] == "learner-0 | more"
    assert job.reader.run.named("loss")[0].values() == [(1, 2.0), (2, 1.0)]


def test_lines_beyond_what_a_look_reads_are_not_lost(job, monkeypatch):
    monkeypatch.setattr("dlctl.logs.reader._CHUNK_BYTES", 100)
    for step in range(2, 50):
        job.measure("", step, loss=1.0 / step)
    assert job.reader.refresh(job.looks.session("testbed"), job.record)
    assert len(job.reader.run.named("loss")[0]) == 49


def test_a_quiet_minute_costs_less_than_a_kilobyte_a_second(job):
    """The collector and the heartbeat go on; nothing else does."""
    job.transport.moved.clear()
    begin, pause_s = job.now_s, 1.0
    while job.now_s < begin + 60:
        job.measure("node", 1, cpu_percent=50.0)
        job.beat()
        pause_s = next_pause_s(pause_s, bool(job.looks.look()))
        job.now_s += pause_s
    moved = sum(len(script) + len(answer) for script, answer in job.transport.moved)
    assert moved < 60_000
    assert job.reader.run.named("cpu_percent")[0].values()


def test_what_happens_makes_the_looks_frequent_again(job):
    pause_s = 5.0
    for step in range(2, 6):
        job.measure("", step, loss=1.0 / step)
        pause_s = next_pause_s(pause_s, bool(job.looks.look()))
        job.now_s += pause_s
    assert pause_s == 1.0
