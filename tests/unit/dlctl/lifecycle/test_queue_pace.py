"""When a client that stays asks the queue: by a clock of the test's own."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from login_side import make_record

from dlctl.contract import Action, Next, State, Status, Verdict
from dlctl.lifecycle import waiting
from dlctl.lifecycle.observe import Observation
from dlctl.lifecycle.waiting import QueuePace

NOW = 1000.0
LIVES = Observation(
    now=NOW, claim="7", supervisor=Status("supervisor", 0, 1, State.TRAINING, heartbeat_at=NOW)
)
LATE = replace(LIVES, now=NOW + 60)
WAITS = Observation(now=NOW)
ENDED = replace(LATE, verdict=Verdict(1, "7", State.COMPLETED, "All went well."))


@pytest.fixture
def asked(monkeypatch):
    """Look every two seconds for so long, and return the seconds at which the queue was asked."""
    clock = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    pace = QueuePace()

    def look(seen: dict[str, Observation], state: State, for_s: float) -> list[float]:
        records = [replace(make_record(state=state), training_id=name) for name in seen]
        found, begin = [], clock.now_s
        while clock.now_s < begin + for_s:
            if pace.asks(records, seen):
                found.append(clock.now_s - begin)
            clock.now_s += 2.0
        return found

    return look


def test_while_jobs_live_the_queue_is_never_asked(asked):
    assert asked({"t-1": LIVES, "t-2": LIVES}, State.TRAINING, 3600) == []


def test_an_end_that_a_verdict_tells_needs_no_queue(asked):
    assert asked({"t-1": ENDED}, State.COMPLETED, 3600) == []


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
    "seen",
    [
        replace(LIVES, exists=False),
        replace(LIVES, next_begun=True),
        replace(LIVES, supervisor=replace(LIVES.supervisor, state=State.FAILED)),
        replace(ENDED, verdict=replace(ENDED.verdict, action=Action(Next.RETRY, "it", 2))),
    ],
    ids=["its folder is gone", "another attempt", "the supervisor ends", "it goes on"],
)
def test_files_that_prove_nothing_are_no_reason_not_to_ask(asked, seen):
    assert asked({"t-1": seen}, State.TRAINING, 2) == [0]
