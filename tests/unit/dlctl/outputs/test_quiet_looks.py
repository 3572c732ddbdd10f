"""A look brings metrics and logs in one script, and a quiet training is looked at seldom."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from login_side import ScriptedScheduler, make_record, make_site, plan_of

from dlctl import contract
from dlctl.contract import State, Status, to_json
from dlctl.contract.metrics import MetricsLine
from dlctl.lifecycle.session import Session
from dlctl.outputs import looks, training_reader
from dlctl.outputs.looks import Looks
from dlctl.outputs.training_reader import TrainingReader
from dlctl.record import RecordStore
from dlctl.terminal.watch import next_pause_s
from dlctl.transport.local import LocalTransport


class Counted(LocalTransport):
    """Notes each script with its answer."""

    def __init__(self):
        super().__init__()
        self.moved = []

    def run(self, script, **how):
        end = super().run(script, **how)
        self.moved.append((script, end.stdout))
        return end


class Job:
    """A job directory that grows, and those who look at it, with a clock of their own."""

    def __init__(self, folder, monkeypatch):
        self.record = make_record(folder, state=State.TRAINING)
        self.now_s, self.transport = 1000.0, Counted()
        clock = SimpleNamespace(monotonic=lambda: self.now_s)
        for module in (looks, training_reader):
            monkeypatch.setattr(module, "time", clock)
        self.folder = folder / "jobs/t-1"
        self.write(contract.PLAN, to_json(plan_of()).encode())
        session = Session(make_site(folder), self.transport, ScriptedScheduler(folder))
        store = RecordStore(folder / "trainings.db")
        store.add(self.record)
        self.looks = Looks([self.record], store, lambda _: session, TrainingReader)
        self.reader = self.looks.readers["t-1"]

    def write(self, name, content, mode="ab"):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode) as file:
            file.write(content)

    def log(self, text):
        self.write("attempts/1/learner-0.log", text.encode())

    def measure(self, source, step, **values):
        suffix = f"-{source}" if source else ""
        line = MetricsLine(step, 1, self.now_s, values).encode()
        self.write(f"metrics/1-0{suffix}.jsonl", line)

    def beat(self):
        status = Status("learner", 0, 1, State.TRAINING, heartbeat_at=self.now_s)
        self.write(contract.status_file(1, "learner", 0), to_json(status).encode(), "wb")


@pytest.fixture
def job(tmp_path, monkeypatch):
    job = Job(tmp_path, monkeypatch)
    job.log("hello\n")
    job.measure("", 1, loss=2.0)
    job.measure("node", 1, cpu_percent=50.0)
    job.beat()
    assert job.looks.look() == {"t-1"}
    job.now_s += 1
    job.looks.look()
    return job


def test_one_script_brings_metrics_and_logs(job):
    job.log("more\n")
    job.measure("", 2, loss=1.0)
    job.transport.moved.clear()
    assert job.reader.refresh(job.looks.session("testbed"), job.record)
    assert len(job.transport.moved) == 1
    assert job.reader.lines[-1] == "learner-0 | more"
    assert job.reader.run.named("loss")[0].values() == [(1, 2.0), (2, 1.0)]


def test_lines_beyond_what_a_look_reads_are_not_lost(job, monkeypatch):
    monkeypatch.setattr("dlctl.outputs.logs._CHUNK_BYTES", 100)
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
