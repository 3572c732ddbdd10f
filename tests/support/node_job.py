"""A job directory as the login side makes it, for tests of the node side."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

from repository import REPOSITORY
from zygote import TIME_LIMIT_S, Forked, light
from zygote import wait_for as wait_until

from dlctl import contract
from dlctl.contract import Plan, State, Status, Verdict
from learner.system import processes

REPO = REPOSITORY
MPIRUN = Path(sys.executable).parent / "mpirun"
PATIENCE_S = TIME_LIMIT_S
TRAINING_ID = f"t-{os.getpid()}"
"""Another one in each process of the tests: a training's name is that of its shared memory, too."""

FAKE_LAUNCHER = """\
import os, subprocess, sys
n = int(sys.argv[1])
run = [
    subprocess.Popen(
        sys.argv[2:],
        env={**os.environ, "SLURM_NTASKS": str(n), "SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)},
    )
    for i in range(n)
]
sys.exit(max(p.wait() for p in run))
"""
"""What srun with a wrong PMI is to MPI: N processes that know nothing of each other."""


Started = Forked | subprocess.Popen[str]
"""A supervisor."""


def on_nodes(resources: contract.Resources, per_node: list[int]) -> contract.Resources:
    """Return resources whose learners are placed in blocks of these sizes."""
    first = list(itertools.accumulate(per_node[:-1], initial=0))
    return dataclasses.replace(resources, learners_per_node=per_node, first_ranks=first)


class Job:
    """One hand-made training."""

    def __init__(self, root: Path, command: str | None = None, **changes: Any) -> None:
        self.dir = root / "jobs" / TRAINING_ID
        self.code = self.dir / contract.CODE
        self.code.mkdir(parents=True)
        (self.dir / contract.attempt_dir(1)).mkdir(parents=True)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "OMPI_"))}
        # What a killed process leaves in its temporary folder is pytest's to remove.
        self.env["TMPDIR"] = str(root)
        self.env["OMPI_MCA_btl_sm_backing_directory"] = str(root)
        resources = {
            "learners": 1, "nodes": 1, "learners_per_node": [1], "cpus_per_learner": 1,
            "threads_per_learner": 1, "gpus_per_learner": 0, "memory_bytes_per_learner": 1 << 30,
            "memory_bytes_per_node": None, "gpus_per_node": 0, "time_s": None,
            "halt_margin_s": 20,
            **changes.pop("resources", {}),
        }  # fmt: skip
        resources |= {"learners_per_node": [resources["learners"]], "first_ranks": [0]}
        self.plan = Plan(
            training_id=TRAINING_ID, name="test", version="1", description="", site="here",
            root=str(root), job_dir=str(self.dir), runtime_dir=str(REPO), code_digest="",
            created_at="", dlctl_version="0", resources=contract.Resources(**resources),
            batch=changes.pop("batch", contract.Batch("local")),
            launch=changes.pop("launch", contract.Launch("direct", [])),
            environment=contract.Environment(python=sys.executable),
            framework=contract.Framework("pytorch", None, command, changes.pop("job", None)),
            training=contract.Training(), checkpoint=contract.CheckpointPolicy(), **changes,
        )  # fmt: skip
        self.write_plan()

    @classmethod
    def on_mpi(cls, root: Path, learners: int, command: str | None, **changes: Any) -> Job:
        """Return a job whose learners mpirun starts."""
        argv = [str(MPIRUN), "--oversubscribe", "-n", str(learners)]
        job = cls(
            root, command, launch=contract.Launch("mpirun", argv),
            resources={"learners": learners, **changes.pop("resources", {})}, **changes,
        )  # fmt: skip
        job.env |= {
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_mpi_yield_when_idle": "1",
        }
        return job

    @classmethod
    def on_fake_srun(cls, root: Path, learners: int, command: str, **changes: Any) -> Job:
        """Return a job whose learners are plain processes with Slurm's variables."""
        script = root / "srun.py"
        script.write_text(FAKE_LAUNCHER)
        launch = contract.Launch("srun", [sys.executable, str(script), str(learners)])
        resources = {"learners": learners, **changes.pop("resources", {})}
        return cls(root, command, launch=launch, resources=resources, **changes)

    def write_plan(self, **changes: Any) -> None:
        self.plan = dataclasses.replace(self.plan, **changes)
        contract.write_whole(self.dir / contract.PLAN, contract.to_json(self.plan))

    def write(self, name: str, text: str) -> Path:
        path = self.code / name
        path.write_text(text)
        return path

    def start(self, output: int | IO[str] = subprocess.PIPE, attempt: int = 1) -> Forked:
        """Start the supervisor."""
        program = ("-m", "learner.supervisor", self.dir, str(attempt))
        return light().start(*program, env=self.env, stdout=output)

    def start_afresh(self) -> subprocess.Popen[str]:
        """Start the supervisor and what it starts as programs with command lines of their own."""
        return subprocess.Popen(
            [sys.executable, "-u", "-m", "learner.supervisor", str(self.dir), "1"],
            cwd=REPO, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def run(self) -> Verdict:
        process = self.start()
        return self.finish(process)

    def finish(self, process: Started) -> Verdict:
        try:
            self.output, _ = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired as late:
            raise AssertionError(self._stuck(process, late)) from None
        self.exit_code = process.returncode
        verdict = contract.read_record(Verdict, self.dir / contract.verdict_file(1))
        assert verdict is not None, self.output
        return verdict

    def _stuck(self, process: Started, late: subprocess.TimeoutExpired) -> str:
        """Return what hung, with all that is known of it; end it."""
        family = [process.pid, *processes.descendants(process.pid)]
        lines = [f"still running after {late.timeout:.0f} s:"]
        for pid in family:
            where = [_content(Path(f"/proc/{pid}/{name}")) for name in ("cmdline", "wchan")]
            lines.append(f"{pid}: {where[0][:160]} (in {where[1]})")
        processes.send(family, signal.SIGABRT)  # faulthandler writes stacks to the logs
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        processes.send(family, signal.SIGKILL)
        self.output = process.communicate()[0]
        logs = sorted(self.dir.glob("attempts/*/*.log")) + sorted(self.dir.glob("logs/**/*.log"))
        return "\n".join([*lines, self.output, *(f"{p.name}:\n{_content(p)}" for p in logs)])

    def log(self, rank: int = 0) -> str:
        path = self.dir / contract.learner_log(1, rank)
        return path.read_text() if path.exists() else ""

    def status(self, rank: int = 0, role: str = "learner") -> Status | None:
        own = contract.read_record(Status, self.dir / contract.status_file(1, role, rank))
        rulings = contract.read_record(contract.Rulings, self.dir / contract.rulings_file(1))
        return own if rulings is None else rulings.on(role, rank, own)

    def ask(self, name: str) -> None:
        contract.write_whole(self.dir / name, "")


def _content(path: Path) -> str:
    try:
        return path.read_bytes().replace(b"\0", b" ").decode(errors="replace")[-8000:]
    except OSError as error:
        return str(error)


def alive(pid: int) -> bool:
    """Return whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


SAVER = """\
import os, signal, sys, time
saved = os.path.join(os.environ["CHECKPOINT_DIR"], "saved-" + os.environ["RANK"])
def save(*_):
    open(saved, "w").close()
    sys.exit(0)
signal.signal(signal.SIGUSR2, save)
print("pid", os.getpid(), "ready", flush=True)
while True:
    time.sleep(0.2)
"""
"""A program that knows of the signal. It sleeps in short naps: a signal that comes between Python's
last check and a long sleep would wait for the end of that sleep."""

SLEEPER = "import os, time; print('pid', os.getpid(), 'ready', flush=True); time.sleep(600)"


def printed_pid(job: Job, rank: int = 0) -> int:
    """Wait until a learner printed its pid, and return it."""
    wait_until(lambda: "ready" in job.log(rank))
    words = job.log(rank).split()
    return int(words[words.index("pid") + 1])


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def status(rank: int, state: State = State.TRAINING, **more: object) -> Status:
    return Status("learner", rank, 1, state, host=f"n{rank + 1}", heartbeat_at=5.0 - rank, **more)
