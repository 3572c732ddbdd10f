"""A login host that counts: an sshd in a PID namespace of its own, and an squeue that counts calls.

The kernel numbers the processes of a namespace one after another, so the number of a new one tells
how many were started before it: all of them, whoever started them and however short they lived.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from login_side import plan_of

from dlctl import contract
from dlctl.contract import State, Status
from dlctl.contract.metrics import make_line
from dlctl.lifecycle.session import Session
from dlctl.record import Record
from dlctl.scheduler import make_scheduler
from dlctl.transport.base import Transport

NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
_SQUEUE = """#!/bin/sh
echo >>{folder}/calls
cat {folder}/rows
"""


def can_count() -> bool:
    """Whether this machine lets us make a PID namespace."""
    if not shutil.which("unshare") or not shutil.which("nsenter"):
        return False
    return subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode == 0


def init_of(unshare: subprocess.Popen) -> int:
    """The process that is number 1 in the namespace that `unshare` made."""
    children = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children").read_text().split()
    return int(children[0])


def newest_number(init: int) -> int:
    """The number of a process that is started in a namespace now."""
    argv = ["nsenter", "-t", str(init), "-p", "sh", "-c", "echo $$"]
    return int(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)


@contextmanager
def counted(init: int) -> Iterator[list[int]]:
    """Count the processes that the host starts inside the `with` block; the list gets the sum."""
    before, found = newest_number(init), []
    yield found
    found.append(newest_number(init) - before - 1)


@dataclass
class Trainings:
    """Job directories whose jobs live: their heartbeats, metrics and logs."""

    root: Path
    count: int = 1
    state: State = State.TRAINING
    records: list[Record] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bin = self.root / "slurm"
        self.bin.mkdir(parents=True)
        (self.bin / "squeue").write_text(_SQUEUE.format(folder=self.bin))
        (self.bin / "squeue").chmod(0o755)
        (self.bin / "rows").write_text("")
        for number in range(self.count):
            job = self.root / "jobs" / f"t-{number}"
            for name in ("metrics", "attempts/1/status"):
                (job / name).mkdir(parents=True)
            (job / contract.submit_begin(1)).parent.mkdir(parents=True, exist_ok=True)
            (job / contract.submit_begin(1)).write_text("now\n")
            (job / contract.claim(1)).write_text(f"{number + 1}\n")
            (job / contract.PLAN).write_text(contract.to_json(plan_of()))
            for name in (contract.MANIFEST, contract.SCRIPT):
                (job / name).touch()
            self.records.append(
                Record(f"t-{number}", "t", "testbed", "/home/me/t", str(job),
                       "2026-01-02T03:04:05.678+00:00", job_id=str(number + 1), state=self.state)
            )  # fmt: skip
        self.beat()

    def session(self, site: object, transport: Transport) -> Session:
        return Session(site, transport, make_scheduler("slurm", path=str(self.bin)))  # type: ignore[arg-type]

    @property
    def squeue_calls(self) -> int:
        """How many times squeue was called."""
        calls = self.bin / "calls"
        return calls.read_text().count("\n") if calls.exists() else 0

    def queue(self, states: dict[str, str]) -> None:
        """What squeue is to say: job id → state."""
        rows = "".join(f"\x1e{job_id}\x1f\x1f{word}\x1f\x1f\x1f" for job_id, word in states.items())
        (self.bin / "rows").write_text(rows)

    def end(self) -> None:
        """Leave a verdict for each."""
        for record in self.records:
            verdict = contract.Verdict(1, record.job_id, State.COMPLETED, "All went well.")
            path = Path(record.job_dir, contract.verdict_file(1))
            path.with_name("new").write_text(contract.to_json(verdict))
            path.with_name("new").rename(path)

    def beat(self, ago_s: float = -3600.0) -> None:
        """Let all supervisors beat: by default by a clock that no slow machine makes late."""
        for record in self.records:
            status = Status("supervisor", 0, 1, self.state, started_at=time.time() - 60,
                          heartbeat_at=time.time() - ago_s)  # fmt: skip
            path = Path(record.job_dir, contract.status_file(1, "supervisor", 0))
            path.with_name("new").write_text(contract.to_json(status))
            path.with_name("new").rename(path)

    def log(self, text: str, number: int = 0) -> None:
        with Path(self.records[number].job_dir, "attempts/1/learner-0.log").open("a") as file:
            file.write(text)

    def measure(self, step: int, number: int = 0) -> None:
        line = make_line(step, 1, time.time(), {"loss": 1 / (1 + step)}).encode()
        with Path(self.records[number].job_dir, "metrics/1-0.jsonl").open("ab") as file:
            file.write(line)

    @contextmanager
    def living(self, lines_every_s: float = 1.0) -> Iterator[None]:
        """Let all jobs beat every two seconds, and print and measure as often as is said."""
        ended = threading.Event()

        def live() -> None:
            step = 0
            while not ended.wait(lines_every_s):
                step += 1
                for number in range(self.count):
                    self.log(f"step {step} at {time.time()}\n", number)
                    self.measure(step, number)
                if step % 2 == 0:
                    self.beat()

        thread = threading.Thread(target=live)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
