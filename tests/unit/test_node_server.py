"""Servers of several nodes, with real processes: each scenario is a process of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("node_server_program.py")
Play = Callable[[str], str]


@pytest.fixture
def play() -> Iterator[Play]:
    """Runs a scenario of the program; returns what it says."""
    folder = Path(tempfile.mkdtemp(prefix="dlctl-test-", dir="/dev/shm"))

    def run(scenario: str) -> str:
        done = subprocess.run(
            [sys.executable, str(PROGRAM), scenario, str(folder)],
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        return done.stdout

    yield run
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    "solver", ["downpour", "momentum", "adagrad", "elastic", "parallel", "averaging", "diloco"]
)
def test_learners_of_two_nodes_reach_the_minimum(play: Play, solver: str) -> None:
    assert play(f"solver:{solver}") == "node 0 at 1: True\nnode 1 at 1: True\n"
