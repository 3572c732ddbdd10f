from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.mpi
RunRanks = Callable[..., "subprocess.CompletedProcess[str]"]
PROGRAM = Path(__file__).with_name("exchange_program.py")


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_exchange_on_every_rank(ranks: int, run_ranks: RunRanks) -> None:
    done = run_ranks(ranks, PROGRAM, str(ranks))
    assert done.returncode == 0, done.stderr
    assert f"all checks passed by {ranks}" in done.stdout


def test_a_world_of_another_size_is_refused(run_ranks: RunRanks) -> None:
    done = run_ranks(2, PROGRAM, "4")
    assert done.returncode != 0
    assert "the plan has 4 learners, but MPI's world has the size 2" in done.stderr
