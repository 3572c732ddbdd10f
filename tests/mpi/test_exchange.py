from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.mpi
RunRanks = Callable[..., "subprocess.CompletedProcess[str]"]
PROGRAM = Path(__file__).with_name("exchange_program.py")
REPOSITORY = Path(__file__).resolve().parents[2]
SHARED_MEMORY = Path("/dev/shm")


@pytest.mark.parametrize(
    ("ranks", "name", "found"),
    [
        (1, "auto", "single"),
        (2, "auto", "shm"),
        (4, "shm", "shm"),
        (2, "mpi", "mpi"),
        (3, "mpi", "mpi"),
        (3, "hierarchical", "hierarchical"),
        (2, "torch", "torch"),
    ],
)
def test_exchange_on_every_rank(ranks: int, name: str, found: str, run_ranks: RunRanks) -> None:
    done = run_ranks(ranks, PROGRAM, name)
    assert done.returncode == 0, done.stderr
    assert f"all checks passed by {ranks} {found} " in done.stdout
    assert not list(SHARED_MEMORY.glob("dlctl-*-memory-*"))


def test_sums_have_the_same_bits_in_every_exchange(run_ranks: RunRanks) -> None:
    said = {run_ranks(2, PROGRAM, name).stdout.split()[-1] for name in ("shm", "mpi")}
    assert len(said) == 1


def test_learners_of_torchrun_share_memory_too() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node=2",
         str(PROGRAM), "auto"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "all checks passed by 2 shm " in done.stdout
