"""Following: why there is nothing to show yet, and the bar below a log on a terminal."""

import io
import time
from dataclasses import replace
from datetime import datetime, timezone

import pytest
from login_side import make_record, make_site

from dlctl import lifecycle
from dlctl.cli import logs as following
from dlctl.cli.logs import ProgressLine, text_of
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


RECORD = make_record(state=State.TRAINING, epoch=3, step=120, done=0.25)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    return Terminal()


@pytest.mark.parametrize(("changes", "text"), [
    ({}, "[#######.......................]  25 %  epoch 3  step 120"),
    ({"done": 0.5, "ends_at": 1300.0, "loss": 0.25},
     "[###############...............]  50 %  epoch 3  step 120  loss 0.25  about 3 min left"),
    ({"done": 1.0, "epoch": None, "step": None}, f"[{'#' * 30}]  100 %"),
    ({"done": None, "started_at": 1006.0}, "TRAINING  epoch 3  step 120  ran 94 s"),
    ({"done": None, "state": State.STORING, "moved": 0.5}, "STORING  50 %"),
])  # fmt: skip
def test_how_far_and_how_long(changes, text):
    """The time is what `list` says, and not since somebody looks."""
    assert text_of(replace(RECORD, **changes), 1100.0) == text


def test_the_line_is_cleared_for_the_log_and_drawn_again(terminal):
    line = ProgressLine(terminal)
    line.update(RECORD)
    drawn = terminal.getvalue()
    assert drawn.startswith("\r\x1b[2K[###") and len(drawn) <= len("\r\x1b[2K") + 59
    for piece in line.below(["log"]):
        assert terminal.getvalue().endswith(f"{drawn}\r\x1b[2K"), piece
    assert terminal.getvalue() == f"{drawn}\r\x1b[2K{drawn}\r\x1b[2K"


@pytest.mark.parametrize("state", [State.QUEUED, State.PENDING, State.COMPLETED])
def test_what_waits_or_has_ended_has_no_line(terminal, state):
    line = ProgressLine(terminal)
    line.update(replace(RECORD, state=state))
    assert list(line.below([1, 2])) == [1, 2]
    assert terminal.getvalue() == ""
    line = ProgressLine(pipe := io.StringIO())
    line.update(RECORD)
    assert not line.active and list(line.below([1])) == [1] and pipe.getvalue() == ""
