"""Servers of nodes that talk MPI."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY, TIME_LIMIT_S, mpi_environment

PROGRAM = REPOSITORY / "tests/support/node_server_program.py"
pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("solver", ["downpour", "parallel"])
def test_mpi_servers_that_die_together_take_over_together(shm_folder: Path, solver: str) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), f"mpi:{solver}", str(shm_folder)],
        env=mpi_environment(), capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "all end with one: True",
        "node 0 at 1: True",
        "node 1 at 1: True",
        "ended with 0",
    ]


def test_a_refused_mpi_server_is_told_why() -> None:
    program = Path(__file__).with_name("refusal_program.py")
    mpiexec = Path(sys.executable).with_name("mpiexec")
    done = subprocess.run(
        [str(mpiexec), "-n", "2", "--oversubscribe", sys.executable, str(program)],
        env=mpi_environment(), capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "logged: refused the server of node 1: another model",
        "refused: another model",
        "served: 7",
    ]
