"""A training that is looked at over a transport that counts, with a clock of the test's own."""

from __future__ import annotations

from types import SimpleNamespace

from login_side import ScriptedScheduler, make_record, make_site, plan_of

from dlctl import contract
from dlctl.contract import State, Status, to_json
from dlctl.contract.metrics import MetricsLine
from dlctl.lifecycle.session import Session
from dlctl.live import sites, training
from dlctl.record import RecordStore
from dlctl.terminal.watch import Watched
from dlctl.transport.local import LocalTransport
from dlctl.transport.resident import Resident


class Counted(LocalTransport):
    """Notes each script, and each request to a shell that stays, with its answer."""

    def __init__(self):
        super().__init__()
        self.moved = []

    def run(self, script, **how):
        end = super().run(script, **how)
        self.moved.append((script, end.stdout))
        return end


class WatchedJob:
    """A job directory that grows, and those who look at it, with a clock of their own."""

    def __init__(self, folder, monkeypatch):
        self.record = make_record(folder, state=State.TRAINING, job_id="7")
        self.now_s, self.transport = 1000.0, Counted()
        clock = SimpleNamespace(monotonic=lambda: self.now_s, sleep=lambda s: self.sleep(s))
        for module in (sites, training):
            monkeypatch.setattr(module, "time", clock)
        ask = Resident._ask

        def counted(stays, request, *limit):
            is_kept = request == stays._kept
            frames = ask(stays, request, *limit)
            if frames is not None:
                self.transport.moved.append(("=" if is_kept else request, b"".join(frames)))
            return frames

        monkeypatch.setattr(Resident, "_ask", counted)
        self.folder = folder / "jobs/t-1"
        self.write(contract.PLAN, to_json(plan_of()).encode())
        session = Session(make_site(folder), self.transport, ScriptedScheduler(folder))
        store = RecordStore(folder / "record.db")
        store.add(self.record)
        self.store = store
        self.watched = Watched(store, lambda _: session, [self.record])
        self.training = self.watched.trainings["t-1"]
        self.live = self.watched.live

    def close(self):
        self.live.close()

    def sleep(self, seconds):
        """Let time pass."""
        self.now_s += seconds

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
