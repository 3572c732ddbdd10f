"""Trainings with a parameter server, for tests that kill parts of them."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

from trainings import write_training
from waiting import wait_until

from dlctl import contract
from psrv.cursor.file import FileCursor
from psrv.cursor.overseer import reported

SLOW_SAMPLES, SLOW_EPOCHS = 240, 120
SLOW = """\
import os, time
from pathlib import Path
import torch

class Slow(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(4, 2)
        self.hurry = Path(os.environ["JOB_STATE_DIR"], "hurry")

    def forward(self, inputs):
        if self.training and not self.hurry.exists():
            time.sleep(0.1)
        return self.line(inputs)

def build(arguments):
    torch.manual_seed(1)
    inputs = torch.randn(240, 4)
    data = torch.utils.data.TensorDataset(inputs, inputs[:, :2] - inputs[:, 2:])
    model = Slow()
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.05),
            "loss": torch.nn.functional.mse_loss, "train": data, "validation": data}
"""
"""A training that takes minutes until somebody touches `state/hurry`, and then seconds."""


PAUSES = """

class Pause(nn.Module):
    def forward(self, inputs):
        if self.training and not Path(os.environ["JOB_STATE_DIR"], "hurry").exists():
            time.sleep(0.15)
        return inputs

def build(arguments, build=build):
    import time
    globals()["time"] = time
    parts = build(arguments)
    parts["model"].insert(0, Pause())
    return parts
"""
"""Added to an example's train.py: it takes long until somebody touches `state/hurry`."""


def write_slow(folder: Path, **keys: Any) -> Path:
    """Write a manifest of learners on a parameter server that are slow until they hurry."""
    asked = {
        "training": {"epochs": SLOW_EPOCHS, "batch_size": 16, "validate_every_epochs": SLOW_EPOCHS},
        "checkpoint": {"every": "1 epoch", "keep": 2},
        "parameter_server": {"solver": "downpour_sgd", "min_learners": 1},
        "memory": "900MiB",
    } | keys
    return write_training(folder, {"job": "train.py"}, {"train.py": SLOW}, **asked)


def hurry(job_dir: Path) -> None:
    """Let a slow training come to its end."""
    (job_dir / contract.JOB_STATE / "hurry").touch()


# Processes: those in the cluster's namespaces are seen from here, too ----------------------------


def processes_of(job_dir: Path, module: str) -> list[tuple[int, list[str]]]:
    """Return (pid, command) of all processes that run a module for a training."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if module in words and str(job_dir) in words and "srun" not in words[0]:
            found.append((int(path.name), words))
    return found


def learners_of(job_dir: Path, module: str = "learner.train") -> dict[int, int]:
    """Return the process of each living learner, or its watchdog (`learner.agent`), by rank."""
    found = {}
    variable = b"RANK=" if module == "learner.train" else b"DLCTL_RANK="
    pids = {pid for pid, _ in processes_of(job_dir, module)}
    for pid in pids:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent in pids:  # a fork that looks the same: a watchdog's guard
            continue
        ranks = [word.partition(b"=")[2] for word in environment if word.startswith(variable)]
        if ranks:
            found[int(ranks[0])] = pid
    return found


def servers_of(job_dir: Path) -> dict[int, int]:
    """Return the process of each node's living server."""
    found = processes_of(job_dir, "learner.parameter_server.server")
    return {
        int(words[words.index("learner.parameter_server.server") + 3]): pid for pid, words in found
    }


def kill(pid: int) -> bool:
    """Kill a process outright; return whether it was there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


# Files -------------------------------------------------------------------------------------------


def steps_of(job_dir: Path, attempt: int = 1) -> dict[int, int]:
    """Return the step of each learner whose status tells one."""
    found = {}
    for path in (job_dir / contract.attempt_dir(attempt) / "status").glob("learner-*.json"):
        status = json.loads(path.read_text())
        if status["step"] is not None:
            found[status["rank"]] = status["step"]
    return found


def last_words(job_dir: Path, attempt: int = 1) -> str:
    """Return the ends of all logs of an attempt, for a test that fails."""
    logs = sorted((job_dir / contract.attempt_dir(attempt)).glob("*.log"))
    paths = [job_dir / contract.job_output(attempt), *logs]
    return "\n".join(f"== {p.name}\n{p.read_text(errors='replace')[-2500:]}" for p in paths)


def chunks_of(job_dir: Path, rank: int) -> int:
    """Return how many chunks a learner has reported done since it was started."""
    try:
        number = int((job_dir / contract.cursor_learner_file(1, rank)).read_text())
    except FileNotFoundError:
        return 0
    return (reported(job_dir / contract.cursor_file(1)) or {}).get(number, 0)


def wait_for_learners(job_dir: Path, count: int, attempt: int = 1) -> None:
    """Wait until so many learners have told of a step; an end before that fails the test."""

    def all_train() -> bool:
        assert not (job_dir / contract.verdict_file(attempt)).exists(), last_words(job_dir, attempt)
        return len(steps_of(job_dir, attempt)) == count

    wait_until(all_train, 150, what=f"{count} learners in {job_dir}")


def homes_of(job_dir: Path, attempt: int = 1) -> contract.Homes:
    """Return where the shards are now."""
    found = contract.read_record(contract.Homes, job_dir / contract.homes_file(attempt))
    assert found is not None
    return found


def assert_each_sample_was_done_once(
    job_dir: Path, samples: int, epochs: int, attempt: int = 1
) -> None:
    """Check the cursor's accounting of all passes."""
    with FileCursor(job_dir / contract.cursor_file(attempt), samples, epochs) as cursor:
        assert cursor.finished
        assert cursor.state()["next"] == samples * epochs
        assert cursor.state()["undone"] == []


def shared_memory(training_id: str, site: Any) -> list[str]:
    """Return what a training has in shared memory, on all nodes of its site."""
    if site.cluster is None:
        names = [path.name for path in Path("/dev/shm").iterdir()]
    else:
        nodes = range(1, site.cluster.nodes + 1)
        names = [
            name
            for node in nodes
            for name in site.cluster.exec("ls", "/dev/shm", node=node).split()
        ]
    return [name for name in names if re.search(re.escape(training_id), name)]
