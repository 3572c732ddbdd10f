"""One training under a seeded schedule of faults, compared with an undisturbed one.

`make chaos` plays faults at random for CHAOS_S seconds, on a chain of jobs of two minutes that
others may preempt; otherwise six are played in one job. Nobody types a command meanwhile: only
`dlctl status` looks now and then, as a person would.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from curves import measured
from served import last_words, shared_memory
from trainings import (
    REPOSITORY,
    begin,
    change_site,
    command_lines,
    state_of,
    verdict,
    wait_for_state,
    write_training,
)
from waiting import wait_until

from dlctl import contract

SECONDS = float(os.environ.get("CHAOS_S", "0"))
SIX = [
    "kill a learner", "kill the supervisor", "crash the controller", "kill the launcher",
    "requeue by an administrator", "damage the newest checkpoint",
]  # fmt: skip
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
LOOK_AFTER_S = 6.0
"""After this long without a step, a person looks."""
EPOCHS = max(8, round(SECONDS * 3.5 / 23))
"""So many seconds' steps: about 3.5 are done in one while faults are played, 23 in an epoch."""


class Chaos:
    """The faults that one training meets."""

    def __init__(self, dlctl: Any, cluster: Any, training_id: str, job_dir: Path) -> None:
        self.dlctl, self.cluster = dlctl, cluster
        self.training_id, self.job_dir = training_id, job_dir
        self.random = random.Random(int(os.environ.get("CHAOS_SEED", "1")))
        self.played: list[str] = []
        first, last = ("supervisor", 0), ("learner", 1)
        self.faults: dict[str, Callable[[], object]] = {
            "kill a learner": lambda: self.kill("learner", self.random.randrange(2), child=True),
            "kill a watchdog": lambda: self.kill("learner", self.random.randrange(2)),
            "kill the supervisor": lambda: self.kill("supervisor"),
            "kill the launcher": self.kill_launcher,
            "power off the first node": lambda: self.lose_node("kill", "start", *first),
            "power off the last node": lambda: self.lose_node("kill", "start", *last),
            "cut off the first node": lambda: self.lose_node("cut", "heal", *first),
            "cut off the last node": lambda: self.lose_node("cut", "heal", *last),
            "crash the first node's slurmd": lambda: self.crash_slurmd(*first),
            "crash the last node's slurmd": lambda: self.crash_slurmd(*last),
            "requeue by an administrator": self.requeue,
            "preempt": self.preempt,
            "crash the controller": lambda: self.for_a_while(cluster.ctld_kill, cluster.ctld_start),
            "hang the controller": lambda: self.for_a_while(cluster.ctld_hang, cluster.ctld_resume),
            "lose the accounting": self.lose_accounting,
            "damage the newest checkpoint": self.damage,
        }

    def attempt(self) -> int:
        receipts = self.job_dir.glob("attempts/*/submit.begin")
        return max((int(path.parent.name) for path in receipts), default=1)

    def status(self, role: str, rank: int) -> contract.Status | None:
        path = self.job_dir / contract.status_file(self.attempt(), role, rank)
        return contract.read_record(contract.Status, path)

    def node(self, role: str = "supervisor", rank: int = 0) -> int | None:
        """Return the number of the node where such a process is; None if there is none."""
        found = self.status(role, rank)
        return int(found.host.removeprefix("n")) if found and found.host else None

    def attack(self, *argv: str, node: int | None = None) -> str:
        try:
            return str(self.cluster.exec(*argv, node=node))
        except Exception:  # the victim has gone already, or the node is down
            return ""

    # Faults --------------------------------------------------------------------------------------

    def kill(self, role: str, rank: int = 0, *, child: bool = False) -> None:
        found, node = self.status(role, rank), self.node(role, rank)
        if found is not None and node is not None:
            children = self.attack("pgrep", "-P", str(found.pid), node=node).split()
            self.attack("kill", "-9", children[-1] if child and children else str(found.pid),
                        node=node)  # fmt: skip

    def kill_launcher(self) -> None:
        if (node := self.node()) is not None:
            self.attack("pkill", "-9", "-f", "srun.*learner.agent", node=node)

    def lose_node(self, how: str, end: str, role: str, rank: int) -> None:
        """Power a node off, or unplug it: it comes back when its successor trains."""
        if (node := self.node(role, rank)) is not None:
            getattr(self.cluster, f"node_{how}")(node)
            self.goes_on(150)
            getattr(self.cluster, f"node_{end}")(node)

    def crash_slurmd(self, role: str, rank: int) -> None:
        """Kill a node's slurmd, and start it again soon, or when Slurm has given the node up."""
        if (node := self.node(role, rank)) is not None:
            self.attack("pkill", "-9", "-x", "slurmd", node=node)
            time.sleep(self.random.choice([2, 25]))
            self.attack("slurmd", node=node)

    def preempt(self) -> None:
        """Bring another job before this one, on its first node."""
        if (node := self.node()) is not None:
            urgent = ["sbatch", "-p", "debug", "-w", f"n{node}", "--exclusive", "--wrap", "sleep 2"]
            with contextlib.suppress(Exception):
                self.cluster.user(*urgent)

    def requeue(self) -> None:
        for job_id in self.attack("squeue", "-h", "-o", "%A").split()[:1]:
            self.attack("scontrol", "requeue", job_id)

    def for_a_while(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        begin()
        time.sleep(self.random.uniform(1, 8))
        end()

    def lose_accounting(self) -> None:
        self.cluster.dbd_stop()
        self.kill("learner", child=True)
        self.goes_on(60)
        self.cluster.dbd_start()

    def damage(self) -> None:
        """Overwrite bytes of the newest checkpoint, then make the training read it."""
        for path in sorted(self.job_dir.glob("checkpoints/step-*/share-0.h5"))[-1:]:
            middle = path.stat().st_size // 2
            self.cluster.user("dd", "if=/dev/urandom", f"of={path}", "bs=1", f"seek={middle}",
                              "count=64", "conv=notrunc")  # fmt: skip
        self.kill("learner", child=True)

    # The play ------------------------------------------------------------------------------------

    def is_over(self) -> bool:
        found = verdict(self.job_dir, self.attempt())
        return found is not None and found.state == "COMPLETED"

    def goes_on(self, timeout_s: float) -> bool:
        """Wait until three more steps are done; return whether that happened."""
        before, until = len(steps_of(self.job_dir)), time.monotonic() + timeout_s
        while time.monotonic() < until:
            if len(steps_of(self.job_dir)) >= before + 3 or self.is_over():
                return True
            time.sleep(0.5)
        return False

    def play(self, name: str) -> None:
        """Play a fault once the training goes on after the one before."""
        for _ in range(60):
            if self.goes_on(LOOK_AFTER_S):
                break
            self.dlctl("status", self.training_id)  # a person looks
            lines = self.attack("sinfo", "-h", "-N", "-o", "%N %T").splitlines()
            for drained in {line.split()[0] for line in lines if "drain" in line}:
                # An administrator: Slurm drains a node that comes back with an old job.
                self.attack("scontrol", "update", f"NodeName={drained}", "State=RESUME")
        else:
            raise TimeoutError(f"it does not go on: {last_words(self.job_dir, self.attempt())}")
        if not self.is_over():
            self.played.append(name)
            print(time.strftime("%H:%M:%S"), name, f"in attempt {self.attempt()}", flush=True)
            self.faults[name]()


def steps_of(job_dir: Path) -> list[tuple[int, float]]:
    """Return each step that learner 0 has reported, in the order of attempts, and its loss."""
    paths = sorted(job_dir.glob("metrics/*-0.jsonl"), key=lambda p: int(p.name.split("-")[0]))
    lines = [line for path in paths for line in measured(path)]
    return [(x["step"], x["loss"]) for x in lines if "loss" in x and "samples_per_s" in x]


@pytest.mark.long
@pytest.mark.timeout(900 + 6 * SECONDS)
def test_faults_change_neither_the_weights_nor_the_curve(dlctl, cluster_site, xdg):
    chain = {"scavenge": {"nodes": 4, "cpus_per_node": 2, "max_time": "2m"}}
    site = change_site(cluster_site, xdg.config, partitions=chain)
    shutil.copytree(REPOSITORY / "examples/digits", folder := dlctl.cwd / "digits")
    write_training(
        folder, {"job": "slow.py"}, {"slow.py": SLOW}, learners=2, nodes=2, time="1d",
        training={"epochs": EPOCHS, "batch_size": 64, "log_every_steps": 1, "seed": 3},
        checkpoint={"every": "10 steps"}, retries=1000, retry={"backoff": "1s"},
    )  # fmt: skip
    calm_id, calm = begin(dlctl, site, folder, "--partition", "debug")
    wait_for_state(dlctl, calm_id, "COMPLETED", timeout_s=3600)
    partition = "scavenge" if SECONDS else "debug"
    training_id, job_dir = begin(dlctl, site, folder, "--partition", partition)
    chaos, until = Chaos(dlctl, site.cluster, training_id, job_dir), time.monotonic() + SECONDS
    for name in [] if SECONDS else SIX:
        chaos.play(name)
    while time.monotonic() < until and not chaos.is_over():
        chaos.play(chaos.random.choice(sorted(chaos.faults)))
    wait_until(lambda: chaos.is_over() or state_of(dlctl, training_id)["state"] == "FAILED", 3600,
               interval_s=2.0, what="the end")  # fmt: skip
    assert state_of(dlctl, training_id)["state"] == "COMPLETED", chaos.played
    assert SECONDS or chaos.played == SIX
    ours, theirs = (
        torch.load(each / "results/model.pt", weights_only=True) for each in (job_dir, calm)
    )
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    curve: dict[int, float] = {}
    for step, loss in steps_of(job_dir):  # what was done again counts once
        curve = {n: value for n, value in curve.items() if n < step} | {step: loss}
    assert curve == dict(steps_of(calm))

    def left() -> list[object]:
        jobs = chaos.attack("squeue", "-h").splitlines()
        running = [line for line in command_lines() if str(job_dir).encode() in line]
        return [*jobs, *running, *shared_memory(training_id, site)]

    wait_until(lambda: not left(), 30, interval_s=1.0, what="jobs, processes and memory to go")
