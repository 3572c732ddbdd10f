from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from mpi_programs import memory_left

pytestmark = pytest.mark.mpi
RunRanks = Callable[..., "subprocess.CompletedProcess[str]"]
PROGRAM = Path(__file__).with_name("exchange_program.py")
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.first("2-auto mpi torch-shm mpi torch")
@pytest.mark.costs(25)
@pytest.mark.parametrize(
    ("ranks", "names", "found"),
    [
        (1, "auto", "single"),
        (2, "auto mpi torch", "shm mpi torch"),
        (3, "mpi hierarchical", "mpi hierarchical"),
        pytest.param(4, "shm", "shm", marks=pytest.mark.long),
    ],
)
def test_exchanges_on_every_rank(ranks: int, names: str, found: str, run_ranks: RunRanks) -> None:
    digests = set()
    for name, its_name in zip(names.split(), found.split(), strict=True):
        done = run_ranks(ranks, PROGRAM, name, fresh=name == "torch")  # it needs the compiler
        assert done.returncode == 0, done.stderr
        assert f"all checks passed by {ranks} {its_name} " in done.stdout
        assert not memory_left()
        if name != "torch":  # whose sums are not in rank order
            digests.add(done.stdout.split()[-1])
    assert len(digests) == 1, "sums have the same bits in every exchange"


def test_learners_of_torchrun_share_memory_too() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node=2",
         str(PROGRAM), "auto"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "all checks passed by 2 shm " in done.stdout
