"""`dlctl resume` says what runs; that it can't find out is no failure of the resumption."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from login_side import make_record, plan_of, session_of

from dlctl import contract, lifecycle
from dlctl.contract import State
from dlctl.errors import ConnectionLost
from dlctl.record import RecordStore
from dlctl.service.client import Client
from dlctl.transport.local import LocalTransport


@pytest.fixture
def resume(run, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(Client, "open", lambda _, name, **__: session_of(name))
    RecordStore().add(make_record(state=State.FAILED))
    again = make_record(attempt=2, state=State.PENDING)
    monkeypatch.setattr(lifecycle, "resume", lambda *_, **__: again)
    return partial(run, "resume", "t-1")


def test_changes_that_can_not_be_read_are_no_failure(resume, monkeypatch):
    """The job was submitted: a script that repeats what failed would be told so, and stop."""

    def lose(*_):
        raise ConnectionLost("the connection was lost")

    monkeypatch.setattr(lifecycle, "read_plan", lose)
    done = resume()
    assert done.exit_code == 0, done.exception
    assert "PENDING" in done.stdout
    assert "the connection was lost" in done.stderr


@pytest.mark.parametrize(
    ("options", "changes", "told"), [((), [], True), ((), ["a.py"], False), (["--code"], [], False)]
)
def test_that_the_same_error_comes_again_is_said(
    resume, monkeypatch, tmp_path, options, changes, told
):
    record = make_record(tmp_path)
    verdict = Path(record.job_dir, contract.verdict_file(1))
    verdict.parent.mkdir(parents=True)
    verdict.write_text(contract.to_json(contract.Verdict(
        1, "7", State.FAILED, "NameError", kind=contract.VerdictKind.USER_ERROR
    )))  # fmt: skip
    session = session_of(transport=LocalTransport())
    monkeypatch.setattr(Client, "open", lambda *_, **__: session)
    again = replace(record, attempt=2, state=State.PENDING)
    monkeypatch.setattr(lifecycle, "resume", lambda *_, **__: again)
    monkeypatch.setattr(lifecycle, "read_plan", lambda *_: plan_of())
    monkeypatch.setattr(lifecycle, "changed_since_sent", lambda *_: changes)
    done = resume(*options)
    assert done.exit_code == 0, done.exception
    assert ("ended attempt 1, and the same code runs again" in done.stderr) is told


def test_changes_are_named(resume, monkeypatch):
    monkeypatch.setattr(lifecycle, "read_plan", lambda *_: plan_of())
    names = [f"{number}.py" for number in range(7)]
    monkeypatch.setattr(lifecycle, "changed_since_sent", lambda *_: names)
    said = resume("--learners", "3").stderr
    assert "differs from what was sent: 0.py, 1.py, 2.py, 3.py, 4.py and 2 more; the" in said
    assert "learners is now 1" in said
