"""What a program waits for, and what its waiting keeps from others."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dlctl import lifecycle
from dlctl.api.jobs import Training, is_there, states
from dlctl.contract import State
from dlctl.errors import ConnectionLost, HostKeyError, TrainingFailed
from dlctl.record import Record
from dlctl.service.client import Client
from dlctl.service.pool import Pool
from dlctl.tell import SILENT

RECORD = Record("digits-1", "digits", "a", "/m.yml", "/jobs/digits-1", 1, State.QUEUED)


def opened(name: str) -> Any:
    site = SimpleNamespace(name=name)
    return lifecycle.Session(site, SimpleNamespace(close=lambda: None), None)  # type: ignore[arg-type]


def training_that(monkeypatch, *answers: Any, most: int = 4) -> Training:
    """Return a training whose site gives these answers, and the last one for ever."""
    left = list(answers)
    store: Any = SimpleNamespace(find=lambda _: RECORD)

    def refresh(*_: Any) -> list[Record]:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return [replace(RECORD, state=answer)]

    monkeypatch.setattr(lifecycle, "refresh", refresh)
    monkeypatch.setattr("dlctl.api.jobs._FIRST_S", 0.001)
    return Training(RECORD, Client(store, SILENT, pool=Pool(opened, most=most)))


@pytest.mark.parametrize(("state", "words", "there"), [
    ("TRAINING", "TRAINING", True), ("STORING", "TRAINING", True), ("PENDING", "TRAINING", False),
    ("COMPLETED", "TRAINING", True), ("FAILED", "TRAINING", False), ("HALTED", None, True),
    ("STORING", "COMPLETED", False), ("TRAINING", ["halted", "completed"], False),
    ("CANCELLED", ["HALTED", "CANCELLED"], True),
])  # fmt: skip
def test_a_state_or_one_beyond_it(state, words, there):
    assert is_there(State(state), states(words)) is there


def test_a_wait_outlives_a_lost_connection_but_no_changed_host_key(monkeypatch):
    seen = list[str]()
    training = training_that(monkeypatch, ConnectionLost("lost"), State.PENDING, State.COMPLETED)
    found = training.wait(until="TRAINING", on_look=lambda each: seen.append(str(each)))
    assert found == "COMPLETED" and len(seen) == 2
    with pytest.raises(HostKeyError):
        training_that(monkeypatch, HostKeyError("changed")).wait()


def test_a_wait_ends_with_the_time_or_with_another_end(monkeypatch):
    with pytest.raises(TimeoutError, match="digits-1 is PENDING after 0 s"):
        training_that(monkeypatch, State.PENDING).wait(timeout_s=0)
    with pytest.raises(TimeoutError):
        training_that(monkeypatch, ConnectionLost("lost")).wait(timeout_s=0)
    with pytest.raises(TrainingFailed) as failed:
        training_that(monkeypatch, State.FAILED).wait(until=["TRAINING", "COMPLETED"])
    assert failed.value.exit_code == 10 and "dlctl show" in failed.value.hint


def test_more_threads_may_wait_than_there_are_connections(monkeypatch):
    training = training_that(monkeypatch, State.TRAINING, most=1)
    looked, over = threading.Barrier(33), threading.Event()

    def wait() -> None:
        first = iter([looked.wait])
        with pytest.raises(KeyError):  # ends the wait
            training.wait(on_look=lambda _: next(first, stop)())

    def stop() -> None:
        if over.is_set():
            raise KeyError

    threads = [threading.Thread(target=wait) for _ in range(32)]
    for each in threads:
        each.start()
    looked.wait(30)
    assert training.refresh().record.state is State.TRAINING
    over.set()
    for each in threads:
        each.join(30)


def test_who_follows_keeps_nobody_waiting():
    mine = Pool(opened, most=1)
    follower, other = mine.lend("a", follows=True), mine.lend("a", follows=True)
    mine.lend("a").close()
    follower.close()
    held = mine.lend("a")
    other.close()
    held.close()
    assert mine._lent == {"a": 0}


def test_a_call_does_not_wait_for_ever_behind_long_ones(monkeypatch):
    monkeypatch.setattr("dlctl.service.pool._PATIENCE_S", 0.01)
    mine = Pool(opened, most=1)
    held = mine.lend("a")
    mine.lend("a").close()
    held.close()
    assert mine._lent == {"a": 0}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of Python 3.12
def test_a_fork_opens_connections_of_its_own():
    opens = list[str]()
    mine = Pool(lambda name: opens.append(name) or opened(name), most=1)  # type: ignore[func-returns-value]
    mine.lend("a").close()
    held, is_held, may_go = mine.lend("a"), threading.Event(), threading.Event()

    def hold() -> None:
        with mine._changed:
            is_held.set()
            may_go.wait(60)

    other = threading.Thread(target=hold)
    other.start()
    is_held.wait(30)
    if not (child := os.fork()):
        try:  # the lock, and what was lent, are the parent's
            signal.alarm(20)
            mine.lend("a").close()
            held.close()
        finally:
            os._exit(len(opens))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    may_go.set()
    other.join(30)
    held.close()
    assert len(opens) == 1
