"""The examples of frameworks of others, run as dlctl runs them, in the environments of `place`."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from pathlib import Path
from typing import NamedTuple

from repository import REPOSITORY
from third_party import place


class Example(NamedTuple):
    """An example, and for how long it has to train so that it can be halted."""

    venv: str
    argument: str
    """What says how long it trains: steps, epochs, rounds."""
    value: int
    learners: int = 2
    tolerance: float = 1e-5
    """How much the final loss may differ from that of an undisturbed training, relatively."""

    @property
    def python(self) -> Path:
        """Return its Python."""
        return place() / self.venv / "bin/python"


EXAMPLES = {
    "tensorflow": Example("tf", "epochs", 40), "jax": Example("jax", "steps", 1500),
    "keras": Example("jax", "epochs", 60, learners=1), "lightning": Example("pt", "steps", 600),
    "huggingface": Example("pt", "steps", 400), "xgboost": Example("xgb", "rounds", 120),
    "dcp": Example("pt", "steps", 600),
}  # fmt: skip


class Learners:
    """The learners of one attempt, as processes here."""

    def __init__(self, name: str, folder: Path) -> None:
        example = EXAMPLES[name]
        self.saved, results = folder / "checkpoints", folder / "results"
        self.logs = [folder / f"learner-{rank}.log" for rank in range(example.learners)]
        for each in (self.saved, results):
            each.mkdir(parents=True, exist_ok=True)
        ports = _free_ports(example.learners + 1)
        workers = ", ".join(f'"127.0.0.1:{port}"' for port in ports[1:])
        self.processes = []
        for rank, log in enumerate(self.logs):
            task = f'{{"type": "worker", "index": {rank}}}'
            env = os.environ | {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(example.learners),
                "LOCAL_WORLD_SIZE": str(example.learners), "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(ports[0]), "JAX_COORDINATOR": f"127.0.0.1:{ports[0]}",
                "TF_CONFIG": f'{{"cluster": {{"worker": [{workers}]}}, "task": {task}}}',
                "TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "jax",
                "CHECKPOINT_DIR": str(self.saved), "RESULT_DIR": str(results),
                "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1",
            }  # fmt: skip
            argv = [example.python, f"train_{name}.py", f"--{example.argument}", example.value]
            with log.open("wb") as output:
                self.processes.append(subprocess.Popen(
                    list(map(str, argv)), env=env, stdout=output, stderr=subprocess.STDOUT,
                    cwd=REPOSITORY / "examples/frameworks",
                ))  # fmt: skip

    def codes(self, timeout_s: float = 200) -> list[int]:
        """Wait for all; return their exit codes."""
        return [process.wait(timeout_s) for process in self.processes]

    def has_saved(self) -> bool:
        """Return whether there is a checkpoint; fail if a learner has ended already."""
        are_running = all(process.poll() is None for process in self.processes)
        assert are_running, self.find_in_log("(?s)(.*)")
        return any(path.is_file() and path.stat().st_size for path in self.saved.rglob("*"))

    def find_in_log(self, pattern: str) -> str:
        """Return what learner 0 has printed, by a pattern with one group."""
        text = self.logs[0].read_text(errors="replace")
        found = re.findall(pattern, text)
        assert found, text[-3000:]
        return str(found[-1])

    def kill(self) -> None:
        """Kill all; nothing stays behind."""
        for process in self.processes:
            process.kill()
            process.wait()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
