"""A test cluster for a benchmark: a real Slurm, that of the tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster import Cluster, missing_programs, one_at_a_time  # type: ignore[import-not-found]

from benchmarks.learners import REPOSITORY
from benchmarks.report import leave_out

__all__ = ["Cluster", "slurm"]


@contextmanager
def slurm(*results: str, nodes: int = 4) -> Iterator[Cluster | None]:
    """Run a cluster; yield None if programs are missing, and leave these results out."""
    if missing := missing_programs():
        leave_out(*results, why=f"no test cluster without {', '.join(missing)}")
        yield None
        return
    cluster = Cluster(nodes=nodes, venv=Path(sys.prefix), hide=REPOSITORY)
    try:
        with one_at_a_time():
            cluster.start()
        yield cluster
    finally:
        cluster.wipe()
