"""How tests start programs under mpiexec, and what these must not leave."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
MPIEXEC = Path(sys.executable).with_name("mpiexec")
TIME_LIMIT_S = 240


def mpi_command(ranks: int, python: Sequence[str] = (sys.executable,)) -> list[str]:
    return [str(MPIEXEC), "-n", str(ranks), "--oversubscribe", *python]


def mpi_environment(**more: str) -> dict[str, str]:
    return {
        **os.environ,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY}/tests/cluster",
        **more,
    }


def memory_left() -> list[Path]:
    """Return the exchanges' shared memory whose owner has ended: other workers' tests continue."""
    found = Path("/dev/shm").glob("dlctl-*-memory-*")
    return [path for path in found if not Path("/proc", path.name.split("-")[3]).exists()]
