"""A training with a parameter server of stand-ins, on this machine or on a Slurm of scripts."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from node_job import REPO, Job, alive, on_nodes, wait_until

from dlctl import contract
from dlctl.contract import Homes

SERVER = """\
import json, os, signal, sys, time
from pathlib import Path
from dlctl import contract
from learner.job.directives import Outside
from learner.system.segments import segment_folder
job_dir, attempt, node = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
plan = contract.read_record(contract.Plan, job_dir / contract.plan_file(attempt))
secret = job_dir / contract.server_secret(attempt)
assert len(secret.read_text()) == 64 and secret.stat().st_mode & 0o777 == 0o600
assert contract.read_record(contract.Homes, job_dir / contract.homes_file(attempt))
folder = segment_folder(plan.training_id, attempt)
folder.mkdir(exist_ok=True)
(folder / f"shard-{node}").touch()
def end(*_):
    for file in folder.glob("*"):
        file.unlink(missing_ok=True)
    folder.exists() and folder.rmdir()
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
place = contract.ServerPlace(node, "h", "127.0.0.1", 1, os.getpid())
contract.write_whole(job_dir / contract.server_file(attempt, node), contract.to_json(place))
bad = job_dir / f"bad-server-{node}"
if bad.exists():
    print("[server 0 on h] it is all wrong", flush=True)
    print("[server 0 on h]   HINT: make it right", flush=True)
    os._exit(int(bad.read_text()))
print("serving", flush=True)
outside = Outside(job_dir, attempt, 120.0, node)
while not outside.expelled():
    time.sleep(0.02)
end()
"""
LEARNER = """\
import json, os, signal, sys, time
from pathlib import Path
from dlctl import contract
from psrv.cursor.base import CursorError
from psrv.cursor_file import FileCursor
job_dir, rank = Path(os.environ["MODEL_DIR"]).parent, int(os.environ["RANK"])
samples = int(sys.argv[1])
life = job_dir / "lives" / f"{rank}-{os.getpid()}"
life.parent.mkdir(exist_ok=True)
bad = job_dir / f"bad-learner-{rank}"
if bad.exists():
    exec(bad.read_text())
stopped = []
signal.signal(signal.SIGUSR2, lambda *_: stopped.append(1))
cursor = FileCursor(job_dir / contract.cursor_file(1), samples, 1, look_every_s=0.05)
number = job_dir / contract.cursor_learner_file(1, rank)
contract.write_whole(number, f"{cursor.learner}\\n")
life.touch()
print("pid", os.getpid(), "ready", flush=True)
while not stopped:
    chunk = cursor.take(5)
    if chunk is None:
        if cursor.finished:
            break
        time.sleep(0.02)
        continue
    if not (job_dir / "hurry").exists():
        time.sleep(0.25)
    try:
        cursor.done(chunk)
    except CursorError:
        (job_dir / f"expelled-{rank}").touch()
        raise
    with life.open("a") as done:
        done.write(f"{chunk.start}\\n")
sys.exit(85 if stopped else 0)
"""
SRUN = """\
import os, re, subprocess, sys, threading, time
state = os.environ["FAKE_SLURM"]
argv = sys.argv[1:]
host = next(a for a in argv if a.startswith("--nodelist=")).partition("=")[2]
while argv[0].startswith("-"):
    argv.pop(0)
down = os.path.join(state, "down-" + host)
if os.path.exists(down):
    sys.exit("srun: error: Unable to create step: Requested node configuration is not available")
child = subprocess.Popen(argv, env={**os.environ, "SLURMD_NODENAME": host}, start_new_session=True)
import signal
signal.signal(signal.SIGTERM, lambda *_: child.terminate())
while child.poll() is None:
    if os.path.exists(down):
        if open(down).read() == "lost":
            os.killpg(child.pid, 9)
        sys.exit(f"srun: error: Node failure on {host}")
    time.sleep(0.02)
sys.exit(child.returncode if child.returncode >= 0 else 128 - child.returncode)
"""
SQUEUE = """\
import os
state = os.environ["FAKE_SLURM"]
hosts = os.environ["SLURM_JOB_NODELIST"].split(",")
print(",".join(h for h in hosts if not os.path.exists(os.path.join(state, "gone-" + h))))
"""
SCONTROL = "import sys; print(*sys.argv[3].split(','), sep='\\n')\n"


class WorkerGroupJob(Job):
    """Learners that take chunks of a cursor, each in a step of its own."""

    def __init__(
        self, root: Path, learners: int, *, nodes: int = 1, samples: int = 4_000,
        min_learners: int = 1, **changes: Any,
    ) -> None:  # fmt: skip
        server = contract.ParameterServer("downpour_sgd", list(range(nodes)),
                                          min_learners=min_learners)  # fmt: skip
        per_node = [learners // nodes] * nodes
        super().__init__(
            root, f"exec {{python}} learn.py {samples}",
            launch=contract.Launch("direct", [], step_per_learner=True), parameter_server=server,
            resources={"learners": learners, "nodes": nodes}, **changes,
        )  # fmt: skip
        self.samples = samples
        command = self.plan.framework.command.format(python=self.plan.environment.python)
        self.write_plan(
            training_id=f"t-{os.getpid()}-{root.name}",
            runtime_dir=str(self._runtime(root)),
            framework=contract.Framework("pytorch", None, command, None),
            resources=on_nodes(self.plan.resources, per_node),
        )
        self.write("learn.py", LEARNER)

    @classmethod
    def on_fake_slurm(cls, root: Path, learners: int, nodes: int, **changes: Any) -> WorkerGroupJob:
        """Return a job on nodes n1, n2, … whose srun, squeue and scontrol are scripts."""
        job = cls(root, learners, nodes=nodes, **changes)
        programs = root / "bin"
        programs.mkdir()
        for name, text in (("srun", SRUN), ("squeue", SQUEUE), ("scontrol", SCONTROL)):
            (programs / name).write_text(f"#!{job.plan.environment.python}\n{text}")
            (programs / name).chmod(0o755)
        argv = [str(programs / "srun"), "--nodes=1"]
        job.write_plan(
            batch=contract.Batch("slurm"),
            launch=contract.Launch("srun", argv, step_per_learner=True),
            parameter_server=contract.ParameterServer(**{
                **vars(job.plan.parameter_server), "argv": argv, "rejoin_argv": [argv] * nodes
            }),
        )  # fmt: skip
        hosts = ",".join(f"n{node + 1}" for node in range(nodes))
        job.env |= {"FAKE_SLURM": str(root), "SLURM_JOB_NODELIST": hosts, "SLURM_JOB_ID": "7"}
        return job

    def _runtime(self, root: Path) -> Path:
        """Return a runtime whose server is the stand-in."""
        runtime = root / "runtime"
        runtime.mkdir()
        for name in ("dlctl", "psrv"):
            (runtime / name).symlink_to(REPO / name)
        shutil.copytree(REPO / "learner", runtime / "learner", copy_function=os.symlink)
        # An empty package, too: the real one loads torch.
        for name, text in (("server", SERVER), ("__init__", "")):
            file = runtime / f"learner/parameter_server/{name}.py"
            file.unlink()
            file.write_text(text)
        return runtime

    def hurry(self) -> None:
        """Let the learners come to the end of the samples, which takes a minute otherwise."""
        (self.dir / "hurry").touch()

    # What is seen -------------------------------------------------------------------------------

    def lives(self, rank: int) -> list[int]:
        """Return the processes of a learner that came as far as the cursor, the newest last."""
        folder = self.dir / "lives"
        found = sorted(folder.glob(f"{rank}-*"), key=lambda path: path.stat().st_mtime_ns)
        return [int(path.name.partition("-")[2]) for path in found]

    def living(self, rank: int) -> int:
        """Wait for a learner's living process, and return it."""
        wait_until(lambda: any(alive(pid) for pid in self.lives(rank)))
        return next(pid for pid in self.lives(rank) if alive(pid))

    def server_pid(self, node: int = 0, but: int = 0) -> int:
        """Wait for a node's server, and return its process."""
        path = self.dir / contract.server_file(1, node)
        wait_until(lambda: path.exists() and json.loads(path.read_text())["pid"] != but)
        return int(json.loads(path.read_text())["pid"])

    def homes(self) -> Homes:
        """Return the homes as they are now."""
        found = contract.read_record(Homes, self.dir / contract.homes_file(1))
        assert found is not None
        return found

    def done(self) -> list[int]:
        """Return the starts of all chunks that learners reported done, sorted."""
        files = (self.dir / "lives").iterdir()
        return sorted(int(line) for path in files for line in path.read_text().split())

    def shared_memory(self) -> list[str]:
        """Return what the training has in shared memory now."""
        return [p.name for p in Path("/dev/shm").glob(f"dlctl-*-{self.plan.training_id}.*")]
