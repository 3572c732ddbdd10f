"""Play a seeded random schedule of faults on a real Slurm while a training runs (`make chaos`).

    CHAOS_S=1800 CHAOS_SEED=1 .venv/bin/python tests/cluster/chaos.py

The digits example runs undisturbed first, in one job; then as a chain of jobs of two minutes.
Afterwards the weights of both are compared bit for bit, and the metrics of all attempts have each
step once; no job, process or shared memory may be left. Nobody types a command meanwhile: only
`dlctl status` looks now and then, as a person would.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "tests/cluster")]

from cluster import Cluster  # noqa: E402
from site_text import CLUSTER_SITE  # noqa: E402

from dlctl import contract  # noqa: E402
from dlctl.contract import Status, Verdict  # noqa: E402

LOOK_AFTER_S = 6.0
"""After this long without a step, a person looks."""
LEARNERS = 2
SLOW = """\
import time, torch, train
class Slow(torch.utils.data.Dataset):
    def __init__(self, points):
        self.points = points
    def __len__(self):
        return len(self.points)
    def __getitem__(self, index):
        time.sleep(0.0025)
        return self.points[index]
def build(arguments):
    parts = train.build(arguments)
    return parts | {"train": Slow(parts["train"])}
"""
"""The digits example with dropout and Adam, so that random states and moments count, too."""
STEPS_IN_AN_EPOCH = 23
STEPS_A_SECOND = 3.5
"""About what is done while faults are played: 0.08 s a step, and a fault every 15 s."""


class Chaos:
    """One user, one cluster, one training after the other."""

    def __init__(self, cluster: Cluster, folder: Path, seed: int) -> None:
        self.cluster, self.folder, self.random = cluster, folder, random.Random(seed)
        self.env = {
            **os.environ, **cluster.env, "XDG_CONFIG_HOME": str(folder / "config"),
            "XDG_STATE_HOME": str(folder / "state"), "XDG_DATA_HOME": str(folder / "data"),
            "PYTHONPATH": str(REPOSITORY),
        }  # fmt: skip
        self.root = cluster.home / f"dl-chaos-{seed}"
        site = folder / "config/dlctl/sites/testbed.yml"
        site.parent.mkdir(parents=True)
        text = CLUSTER_SITE.format(host=cluster.host, root=self.root, python=cluster.node_python)
        links = "  scavenge: {nodes: 4, cpus_per_node: 2, max_time: 2m}\n"
        site.write_text(text.replace("launcher:\n", f"{links}launcher:\n"))
        self.played: list[str] = []
        self.job_dir = Path()

    # The training --------------------------------------------------------------------------------

    def dlctl(self, *arguments: str) -> str:
        argv = [sys.executable, "-m", "dlctl", *arguments]
        done = subprocess.run(
            argv, env=self.env, cwd=self.folder / "work", capture_output=True, text=True,
            timeout=300,
        )  # fmt: skip
        return done.stdout

    def submit(self, epochs: int, *, in_links: bool = False) -> str:
        """Submit the training; `in_links`: in jobs of two minutes that others may preempt."""
        work = self.folder / "work"
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(REPOSITORY / "examples/digits", work)
        (work / "slow.py").write_text(SLOW)
        (work / "manifest.yml").write_text(json.dumps({
            "name": "chaos", "learners": LEARNERS, "nodes": 2, "memory": "768MiB", "time": "1d",
            "framework": {"name": "pytorch", "job": "slow.py"},
            "training": {"epochs": epochs, "batch_size": 64, "log_every_steps": 1, "seed": 3},
            "checkpoint": {"every": "10 steps"}, "retries": 1000, "retry": {"backoff": "1s"},
        }))  # fmt: skip
        partition = "scavenge" if in_links else "debug"
        arguments = ["submit", "manifest.yml", "--site", "testbed", "--partition", partition]
        training_id = self.dlctl(*arguments).strip()
        self.job_dir = self.root / "jobs" / training_id
        return training_id

    def state(self, training_id: str) -> dict[str, Any]:
        text = self.dlctl("status", training_id, "--json")
        return dict(json.loads(text)) if text.strip() else {"state": "?"}

    def attempt(self) -> int:
        receipts = self.job_dir.glob("attempts/*/submit.begin")
        return max((int(path.parent.name) for path in receipts), default=1)

    def step(self) -> int:
        return max((step for step, _ in self.lines()), default=0)

    def lines(self) -> list[tuple[int, float]]:
        """Return each step that learner 0 has reported, in the order of attempts, and its loss."""
        found = []
        for path in sorted(
            self.job_dir.glob("metrics/*-0.jsonl"), key=lambda p: int(p.name.split("-")[0])
        ):
            for line in path.read_text().splitlines():
                known = json.loads(line)
                if "loss" in known and "samples_per_s" in known:
                    found.append((known["step"], known["loss"]))
        return found

    def status(self, role: str, rank: int) -> Status | None:
        path = self.job_dir / contract.status_file(self.attempt(), role, rank)
        return contract.read_record(Status, path)

    # Faults --------------------------------------------------------------------------------------

    def faults(self) -> dict[str, Callable[[], None]]:
        return {
            "kill a learner": lambda: self._kill("learner", self.random.randrange(LEARNERS), True),
            "kill a watchdog": lambda: self._kill("learner", self.random.randrange(LEARNERS)),
            "kill the supervisor": lambda: self._kill("supervisor", 0),
            "kill the launcher": self._kill_launcher,
            "power off the first node": lambda: self._power_off("supervisor", 0),
            "power off the last node": lambda: self._power_off("learner", LEARNERS - 1),
            "cut off the first node": lambda: self._cut_off("supervisor", 0),
            "cut off the last node": lambda: self._cut_off("learner", LEARNERS - 1),
            "crash the first node's slurmd": lambda: self._crash_slurmd("supervisor", 0),
            "crash the last node's slurmd": lambda: self._crash_slurmd("learner", LEARNERS - 1),
            "requeue by an administrator": self._requeue,
            "preempt": self._preempt,
            "crash the controller": self._crash_controller,
            "hang the controller": self._hang_controller,
            "lose the accounting": self._lose_accounting,
            "damage the newest checkpoint": self._damage,
        }

    def _on(self, status: Status | None) -> int | None:
        return int(status.host.removeprefix("n")) if status and status.host else None

    def _kill(self, role: str, rank: int, child: bool = False) -> None:
        found = self.status(role, rank)
        node = self._on(found)
        if found is None or node is None:
            return
        pids = [str(found.pid)]
        if child:
            pids = self._try("pgrep", "-P", str(found.pid), node=node).split() or pids
        self._try("kill", "-9", pids[-1], node=node)

    def _kill_launcher(self) -> None:
        node = self._on(self.status("supervisor", 0))
        if node is not None:
            self._try("pkill", "-9", "-f", "srun.*learner.agent", node=node)

    def _power_off(self, role: str, rank: int) -> None:
        node = self._on(self.status(role, rank))
        if node is None:
            return
        self.cluster.node_kill(node)
        self._wait_for_progress(150)
        self.cluster.node_start(node)

    def _cut_off(self, role: str, rank: int) -> None:
        """Unplug a node that goes on computing; plug it in when its successor trains."""
        node = self._on(self.status(role, rank))
        if node is None:
            return
        self.cluster.node_cut(node)
        self._wait_for_progress(150)
        self.cluster.node_heal(node)

    def _crash_slurmd(self, role: str, rank: int) -> None:
        """Kill a node's slurmd, and start it again soon, or when Slurm has given the node up."""
        node = self._on(self.status(role, rank))
        if node is None:
            return
        self._try("pkill", "-9", "-x", "slurmd", node=node)
        time.sleep(self.random.choice([2, 25]))
        self._try("slurmd", node=node)

    def _preempt(self) -> None:
        """Bring another job before this one, on its first node."""
        node = self._on(self.status("supervisor", 0))
        if node is not None:
            urgent = ["sbatch", "-p", "debug", "-w", f"n{node}", "--exclusive", "--wrap", "sleep 2"]
            with contextlib.suppress(Exception):
                self.cluster.user(*urgent)

    def _requeue(self) -> None:
        ids = self._try("squeue", "-h", "-o", "%A").split()
        if ids:
            self._try("scontrol", "requeue", ids[0])

    def _crash_controller(self) -> None:
        self.cluster.ctld_kill()
        time.sleep(self.random.uniform(1, 5))
        self.cluster.ctld_start()

    def _hang_controller(self) -> None:
        self.cluster.ctld_hang()
        time.sleep(self.random.uniform(1, 8))
        self.cluster.ctld_resume()

    def _lose_accounting(self) -> None:
        self.cluster.dbd_stop()
        self._kill("learner", 0, True)
        self._wait_for_progress(60)
        self.cluster.dbd_start()

    def _damage(self) -> None:
        """Flip a byte of the newest checkpoint, then make the training read it."""
        newest = sorted(self.job_dir.glob("checkpoints/step-*/share-0.h5"))[-1:]
        for path in newest:
            size = path.stat().st_size
            self.cluster.user(
                "dd", "if=/dev/urandom", f"of={path}", "bs=1", f"seek={size // 2}", "count=64",
                "conv=notrunc",
            )  # fmt: skip
        self._kill("learner", 0, True)

    def _resume_drained(self) -> None:
        """Do what an administrator does: Slurm drains a node that comes back with an old job."""
        lines = self._try("sinfo", "-h", "-N", "-o", "%N %T").splitlines()
        for name in {line.split()[0] for line in lines if "drain" in line}:
            self._try("scontrol", "update", f"NodeName={name}", "State=RESUME")

    def _try(self, *argv: str, node: int | None = None) -> str:
        try:
            return self.cluster.exec(*argv, node=node)
        except Exception:  # the victim has gone already, or the node is down
            return ""

    # The play ------------------------------------------------------------------------------------

    def _wait_for_progress(self, timeout_s: float) -> bool:
        """Wait until three more steps are done than before; return whether that happened."""
        before, until = len(self.lines()), time.monotonic() + timeout_s
        while time.monotonic() < until:
            if len(self.lines()) >= before + 3 or self.is_over():
                return True
            time.sleep(0.5)
        return False

    def is_over(self) -> bool:
        path = self.job_dir / contract.verdict_file(self.attempt())
        found = contract.read_record(Verdict, path)
        return found is not None and found.state == "COMPLETED"

    def play(self, training_id: str, names: list[str]) -> None:
        """Play these faults, each once the training goes on after the one before."""
        faults = self.faults()
        for name in names:
            for _ in range(60):
                if self._wait_for_progress(LOOK_AFTER_S):
                    break
                self.state(training_id)  # a person looks
                self._resume_drained()
            else:
                raise TimeoutError(f"{training_id} does not go on: {self.state(training_id)}")
            if self.is_over():
                return
            time.sleep(self.random.uniform(0, 2))
            self.played.append(f"{name} (attempt {self.attempt()}, step {self.step()})")
            print(time.strftime("%H:%M:%S"), self.played[-1], flush=True)
            faults[name]()

    def finish(self, training_id: str, timeout_s: float = 600) -> dict[str, Any]:
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            known = self.state(training_id)
            if known["state"] in ("COMPLETED", "FAILED", "HALTED", "CANCELLED"):
                return known
            time.sleep(2)
        raise TimeoutError(f"{training_id} does not end: {known}")

    def jobs(self) -> set[str]:
        """Return the ids of the jobs in which the attempts ran."""
        return {path.read_text().strip() for path in self.job_dir.glob("attempts/*/job_id")}

    def kinds(self) -> dict[str, int]:
        """Return how often attempts ended by which kind of verdict."""
        found = [
            verdict.kind for path in self.job_dir.glob("attempts/*/verdict.json")
            if (verdict := contract.read_record(Verdict, path))
        ]  # fmt: skip
        return dict(collections.Counter(found))

    def left(self, training_id: str, timeout_s: float = 30) -> list[str]:
        """Return the jobs, processes and shared memory that a training has left over."""
        until = time.monotonic() + timeout_s
        while (found := self._left(training_id)) and time.monotonic() < until:
            time.sleep(1)
        return found

    def _left(self, training_id: str) -> list[str]:
        found = self._try("squeue", "-h").splitlines()
        for path in Path("/proc").glob("[0-9]*/cmdline"):  # a node's processes are seen from here
            with contextlib.suppress(OSError):
                command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found += [f"{path.parent.name} {command}"] * (str(self.job_dir) in command)
        for node in range(1, self.cluster.nodes + 1):
            names = self._try("ls", "/dev/shm", node=node).split()  # noqa: S108
            found += [f"n{node}:/dev/shm/{name}" for name in names if training_id in name]
        return found

    def weights(self) -> str:
        """Return a digest of the final weights."""
        import torch

        state = torch.load(self.job_dir / "results/model.pt", weights_only=True)
        digest = hashlib.sha256()
        tensors = state.get("model", state) if isinstance(state, dict) else state
        for name in sorted(tensors):
            value = tensors[name]
            if isinstance(value, torch.Tensor):
                digest.update(name.encode() + value.numpy().tobytes())
        return digest.hexdigest()


def run(
    cluster: Cluster, folder: Path, seed: int, epochs: int, names: list[str] | None, chaos_s: float
) -> dict[str, Any]:
    """Train twice, the second time with faults; return what came of it."""
    chaos = Chaos(cluster, folder, seed)
    undisturbed = chaos.submit(epochs)
    assert chaos.finish(undisturbed, 3600)["state"] == "COMPLETED"
    expected, calm = chaos.weights(), dict(chaos.lines())
    training_id = chaos.submit(epochs, in_links=names is None)
    until = time.monotonic() + chaos_s
    if names is not None:
        chaos.play(training_id, names)
    while names is None and time.monotonic() < until and not chaos.is_over():
        chaos.play(training_id, [chaos.random.choice(sorted(chaos.faults()))])
    known = chaos.finish(training_id, 3600)
    curve: dict[int, float] = {}
    for step, loss in chaos.lines():
        curve = {n: value for n, value in curve.items() if n < step} | {step: loss}
    return {
        "seed": seed, "state": known["state"], "reason": known["reason"],
        "attempts": known["attempt"], "jobs": len(chaos.jobs()), "kinds": chaos.kinds(),
        "faults": chaos.played,
        "same_weights": chaos.weights() == expected if known["state"] == "COMPLETED" else False,
        "same_curve": curve == calm,
        "done_again": len(chaos.lines()) - len(curve),
        "steps": len(calm),
        "left": chaos.left(training_id),
    }  # fmt: skip


def main() -> int:
    """Play for `CHAOS_S` seconds, or the faults in `CHAOS_FAULTS`; return 0 if nothing was lost."""
    seed, chaos_s = int(os.environ.get("CHAOS_SEED", "1")), float(os.environ.get("CHAOS_S", "1800"))
    names = os.environ.get("CHAOS_FAULTS", "").split(", ")
    cluster = Cluster(venv=Path(sys.prefix))
    epochs = max(8, round(chaos_s * STEPS_A_SECOND / STEPS_IN_AN_EPOCH))
    try:
        cluster.start()
        with tempfile.TemporaryDirectory(prefix="dlctl-chaos-") as folder:
            result = run(cluster, Path(folder), seed, epochs, names if names[0] else None, chaos_s)
    finally:
        cluster.wipe()
    print(json.dumps(result, indent=2))
    fine = result["state"] == "COMPLETED" and result["same_weights"] and result["same_curve"]
    return 0 if fine and not result["left"] else 1


if __name__ == "__main__":
    sys.exit(main())
