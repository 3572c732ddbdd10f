"""Trainings of `examples/digits`, run by the real `dlctl` on a site on this machine."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.learners import ONE_THREAD, PREFIX, REPOSITORY
from benchmarks.start_up import dlctl_argv, environment

_TIME_LIMIT_S = 600.0


class Digits:
    """A user's folder with the example, and a site `local` of its own."""

    def __init__(self, folder: Path) -> None:
        self._env = environment(folder) | ONE_THREAD
        self.code = folder / "digits"
        """The folder that is submitted; a benchmark may add files."""
        shutil.copytree(REPOSITORY / "examples/digits", self.code)

    def train(self, manifest: dict[str, Any]) -> Path:
        """Run a training to its end; return its job directory.

        Raises:
            RuntimeError: it failed; the message has its last output.
        """
        (self.code / "manifest.yml").write_text(json.dumps(manifest))  # JSON is YAML
        submitted = json.loads(self._dlctl("submit", "--json"))
        log = self._dlctl("logs", "--follow", submitted["training_id"])
        state = json.loads(self._dlctl("status", "--json", submitted["training_id"]))["state"]
        if state != "COMPLETED":
            raise RuntimeError(f"{submitted['training_id']} is {state}: {log[-3000:]}")
        return Path(submitted["job_dir"])

    def _dlctl(self, *arguments: str) -> str:
        done = subprocess.run(
            dlctl_argv(*arguments), env=self._env, cwd=self.code, text=True,
            stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIME_LIMIT_S,
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"dlctl {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout


@contextlib.contextmanager
def digits() -> Iterator[Digits]:
    """Make the folders, and delete them at the end."""
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name:
        yield Digits(Path(name))


def manifest(learners: int, epochs: int, seed: int, **more: Any) -> dict[str, Any]:
    """Return the example's manifest with these numbers and further keys."""
    return {
        "name": "digits", "learners": learners, "cpus": 1, "memory": "1GiB", "time": "10m",
        "framework": {"name": "pytorch", "job": "train.py", "arguments": {"lr": 0.002}},
        "training": {
            "epochs": epochs, "batch_size": 64, "seed": seed,
            "learning_rate_schedule": {"name": "cosine"},
        },
        "checkpoint": {"every": f"{epochs} epochs"},
        **more,
    }  # fmt: skip
