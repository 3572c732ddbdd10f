"""The logs of a search: each under its own name, line by line, and the job's end last."""

from types import SimpleNamespace

import pytest

from dlctl.contract import State
from dlctl.contract import search as names
from dlctl.logs import reader as logs
from dlctl.logs.reader import follow, read
from dlctl.search.logs import last_lines, search_logs, trial_logs
from dlctl.transport.local import LocalTransport

ROW = SimpleNamespace(id="task-7")
END = "12:00:00 COMPLETED: all trials have ended\n"


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(text)

    return write


def told(pieces):
    return [(p.attempt, p.source, p.content.decode()) for p in pieces]


def test_each_log_has_its_source_and_the_jobs_end_comes_last(tmp_path, write):
    write("attempts/2/slurm.out", f"12:00:00 DEPLOYING: begins\n{END}")
    write("attempts/1/learner-0.log", "hub one\n")
    write("attempts/2/learner-0.log", "hub two\n")
    write(f"{names.LOGS}/broker-0.log", "owns 3\n")
    write(f"{names.WORKERS}/w1/77.out", "no end")
    assert told(read(LocalTransport(), search_logs(str(tmp_path)))) == [
        (2, "job", "12:00:00 DEPLOYING: begins\n"), (1, "hub", "hub one\n"),
        (2, "hub", "hub two\n"), (0, "broker-0", "owns 3\n"), (0, "w1.77", "no end\n"),
        (2, "job", END),
    ]  # fmt: skip


def test_lines_that_come_while_it_is_followed_are_whole(tmp_path, write, monkeypatch):
    monkeypatch.setattr(logs, "STATE_EVERY_S", -1.0)
    monkeypatch.setattr(logs.time, "sleep", lambda _: None)
    write(f"{names.WORKERS}/w1/77.out", "one\ntw")
    later = iter([("o\n", State.TRAINING), ("three\n", State.TRAINING), ("four", State.COMPLETED)])

    def state():
        text, known = next(later, ("", State.COMPLETED))
        write(f"{names.WORKERS}/w1/77.out", text)
        return known

    pieces = follow(LocalTransport(), search_logs(str(tmp_path)), state, print)
    assert "".join(text for *_, text in told(pieces)) == "one\ntwo\nthree\nfour\n"


def test_of_a_trial_come_its_own_output_and_the_learners(tmp_path, write):
    write(f"{names.TASKS}/task-7/log", "".join(f"line {n}\n" for n in range(30)))
    write(f"{names.TASKS}/task-7/checkpoint/job/attempts/2/learner-1.log", "step 1\n")
    write(f"{names.TASKS}/task-8/log", "another's\n")
    found = told(read(LocalTransport(), trial_logs(str(tmp_path), ROW)))
    assert [each[:2] for each in found] == [(0, "trial"), (2, "learner-1")]
    lines = last_lines(LocalTransport(), str(tmp_path), ROW, 3)
    assert lines == ["line 28", "line 29", "step 1"]
