"""The bar below a followed log: on a terminal only, and never in the way of the log's lines."""

import io
from dataclasses import replace

import pytest
from login_side import make_record

from dlctl.cli import logs as progress_line
from dlctl.cli.logs import ProgressLine, text_of
from dlctl.contract import State

RECORD = make_record(state=State.TRAINING, epoch=3, step=120, done=0.25)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    return Terminal()


@pytest.mark.parametrize(("changes", "now", "text"), [
    ({}, 1000.0, "[#######.......................]  25 %  epoch 3  step 120"),
    ({"done": 0.5}, 1100.0,
     "[###############...............]  50 %  epoch 3  step 120  about 3m20s left"),
    ({"done": 1.0, "epoch": None, "step": None}, 1100.0, f"[{'#' * 30}] 100 %"),
])  # fmt: skip
def test_how_far_and_how_long(changes, now, text):
    assert text_of(replace(RECORD, **changes), (0.25, 1000.0), now) == text


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


def test_a_training_without_progress_shows_its_state_and_for_how_long(terminal, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress_line.time, "monotonic", lambda: now[0])
    line = ProgressLine(terminal)
    line.update(replace(RECORD, done=None))
    now[0] += 14.2
    line.update(replace(RECORD, done=None))
    assert terminal.getvalue().split("\r\x1b[2K")[1:] == ["TRAINING  0s", "TRAINING  14s"]


def test_a_pipe_gets_nothing(monkeypatch):
    pipe = io.StringIO()
    line = ProgressLine(pipe)
    assert not line.active
    line.update(RECORD)
    assert list(line.below([1])) == [1]
    assert pipe.getvalue() == ""
