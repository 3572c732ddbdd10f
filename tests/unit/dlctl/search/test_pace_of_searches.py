"""Those who watch a search ask seldom for the jobs of its workers: by a clock of the test's."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from login_side import make_record

from dlctl.contract import State, to_json
from dlctl.contract.search import BrokerStatus, WorkerStatus
from dlctl.lifecycle import waiting
from dlctl.scheduler.base import Job, JobState
from dlctl.search import overview
from dlctl.search.overview import SearchReader


@pytest.fixture
def asked(monkeypatch):
    """Look every two seconds for so long, and return the seconds at which the queue was asked."""
    clock, found, queue = SimpleNamespace(now_s=0.0), [], []
    session = SimpleNamespace(queue=None)
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    reader = SearchReader(make_record(state=State.TRAINING))
    begin = 0.0

    def read_queue(session):
        found.append(clock.now_s - begin)
        session.queue = (0.0, list(queue), "")
        return session.queue

    monkeypatch.setattr(overview, "read_queue", read_queue)

    def look(
        state: JobState, workers: list[str], for_s: float, end: bool = False, hub_every_s: float = 0
    ) -> list[float]:
        nonlocal begin
        begin = clock.now_s
        told = BrokerStatus("b1", 1, 0.0, workers=[WorkerStatus(name) for name in workers])
        reader._files = {
            "search/workers/w1/submit.end": b"0\n2\n7\n",
            "search/brokers/b1/status.json": to_json(told).encode(),
        }
        queue[:] = [Job("7", "w1", state, "")]
        reader._record = replace(reader._record, state=State.COMPLETED if end else State.TRAINING)
        found.clear()
        while clock.now_s < begin + for_s:
            if hub_every_s and (clock.now_s - begin) % hub_every_s == 0:
                session.queue = (0.0, list(queue), "")
            reader._read_jobs(session)
            assert not hub_every_s or reader._jobs[0].state == state.value
            clock.now_s += 2.0
        return list(found)

    return look


def test_workers_that_wait_are_asked_about_less_and_less(asked):
    assert asked(JobState.PENDING, [], 200) == [0, 4, 20, 50, 110, 170]


def test_workers_that_run_are_asked_about_each_minute_once_a_broker_tells_of_them(asked):
    assert asked(JobState.RUNNING, [], 70) == [0, 4, 20, 36, 52, 68], "none does"
    assert asked(JobState.RUNNING, ["w1.0"], 200)[-2:] == [110, 170]


def test_a_worker_that_comes_or_goes_is_asked_about_soon_and_an_ended_search_once(asked):
    asked(JobState.PENDING, [], 300)
    assert asked(JobState.RUNNING, ["w1.0"], 10) == [0, 4]
    assert asked(JobState.RUNNING, [], 300, end=True) == [0]


def test_what_the_hub_was_asked_about_is_taken_from_the_same_answer(asked):
    asked(JobState.PENDING, [], 60, hub_every_s=4)
    assert asked(JobState.RUNNING, [], 60, hub_every_s=4) == []
