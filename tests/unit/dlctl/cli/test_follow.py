"""Following says why there is nothing to show yet."""

import time
from datetime import datetime, timezone

import pytest
from login_side import make_record, make_site

from dlctl import lifecycle
from dlctl.cli import logs as following
from dlctl.contract import State
from dlctl.errors import RecordError
from dlctl.lifecycle import Session
from dlctl.logs import reader as logs
from dlctl.record import RecordStore
from dlctl.scheduler import make_scheduler
from dlctl.transport.local import LocalTransport


@pytest.fixture
def follow(tmp_path, monkeypatch, capsys):
    """Follow a training that has these states, one after the other; returns what was told."""

    def follow(*states):
        states = iter(states)
        monkeypatch.setattr(lifecycle, "refresh", lambda *_: [next(states)])

        def ask_for_states(transport, reader, state, trouble):
            while not state().final:
                pass
            return iter(())

        monkeypatch.setattr(logs, "follow", ask_for_states)

        session = Session(make_site(), LocalTransport(), make_scheduler("local"))
        following.follow(session, make_record(), RecordStore(tmp_path / "record.db"))
        return capsys.readouterr().err.splitlines()

    return follow


def waits(reason, state=State.PENDING, **more):
    return make_record(state=state, reason=reason, job_id=more.pop("job_id", "7"), **more)


def test_a_queued_job_says_why_it_waits_once_and_at_each_change(follow):
    resources, priority = "waiting in the queue: Resources", "waiting in the queue: Priority"
    told = follow(
        waits(resources), waits(resources), waits(priority), waits("", State.TRAINING),
        waits("All went well.", State.COMPLETED),
    )  # fmt: skip
    assert told == [f"t-1 PENDING: {resources}", f"t-1 PENDING: {priority}"]


def test_an_interrupted_submission_has_nothing_to_follow_and_says_how_to_continue(follow):
    why = "the submission was interrupted: nothing was sent"
    with pytest.raises(RecordError, match=why) as refused:
        follow(waits(why, State.QUEUED, job_id="", hint="dlctl resume t-1"))
    assert refused.value.hint == "dlctl resume t-1"


def test_a_submission_that_another_dlctl_may_be_sending_is_waited_for(follow):
    now = datetime.fromtimestamp(time.time(), timezone.utc).isoformat()
    why = "the submission was interrupted: nothing was sent"
    young = waits(why, State.QUEUED, job_id="", created_at=now)
    (told,) = follow(young, young, waits("", State.COMPLETED))
    assert told.startswith("t-1 QUEUED: it has not reached the scheduler yet")
    assert told.endswith("dlctl resume t-1")
