"""Servers of nodes that talk MPI."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mpi_programs import REPOSITORY, TIME_LIMIT_S, mpi_environment
from zygote import Zygote

PROGRAM = REPOSITORY / "tests/support/node_server_program.py"
pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("solver", ["downpour", "parallel"])
def test_mpi_servers_that_die_together_take_over_together(
    shm_folder: Path, solver: str, zygote: Zygote
) -> None:
    environment = mpi_environment(MPI_PYTHON=shlex.join(zygote.rank()))
    done = zygote.run(PROGRAM, f"mpi:{solver}", shm_folder, env=environment, timeout_s=TIME_LIMIT_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "all end with one: True",
        "node 0 at 1: True",
        "node 1 at 1: True",
        "ended with 0",
    ]


def test_a_refused_mpi_server_is_told_why(run_ranks: Callable[..., Any]) -> None:
    program = Path(__file__).with_name("refusal_program.py")
    done = run_ranks(2, program)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "logged: refused the server of node 1: another model",
        "refused: another model",
        "served: 7",
    ]
