"""Time candidates in one set of learners that runs all of them (the learners' side).

The candidates take turns in the same processes, and every round begins with a different one. A
barrier precedes each timing; a round takes as long as its slowest learner.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI

from benchmarks.report import Rounds


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Candidate:
    """One method to do the measured work."""

    name: str
    run: Callable[[], None]
    prepare: Callable[[], None] = _nothing
    """Called before each run, untimed."""
    check: Callable[[], None] = _nothing
    """Called after each run, untimed; raises if the result is wrong."""
    max_runs: int = 10**9
    """A slow candidate may run in the first rounds only."""


def measure(
    comm: MPI.Intracomm, candidates: Sequence[Candidate], rounds: Rounds
) -> dict[str, float]:
    """Return each candidate's median time in seconds, the same on every learner."""
    samples: dict[str, list[float]] = {candidate.name: [] for candidate in candidates}
    for turn in range(-rounds.warm_up, rounds.runs):
        first = turn % len(candidates)
        for candidate in [*candidates[first:], *candidates[:first]]:
            if turn >= candidate.max_runs:
                continue
            elapsed_s = _time_s(comm, candidate)
            if turn >= 0:
                samples[candidate.name].append(elapsed_s)
    return {name: statistics.median(times_s) for name, times_s in samples.items()}


def _time_s(comm: MPI.Intracomm, candidate: Candidate) -> float:
    candidate.prepare()
    comm.Barrier()
    start = time.perf_counter()
    candidate.run()
    elapsed_s = time.perf_counter() - start
    slowest_s = comm.allreduce(elapsed_s, MPI.MAX)
    candidate.check()
    return slowest_s


def start_gloo(comm: MPI.Intracomm) -> None:
    """Start torch.distributed over gloo among the learners; the first one listens on a free port.

    On one node use the loopback device, whatever the node's name resolves to.
    """
    rank, size = comm.Get_rank(), comm.Get_size()
    nodes = comm.allgather(MPI.Get_processor_name())
    if len(set(nodes)) == 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        nodes = ["127.0.0.1"]
    store = None
    if rank == 0:
        store = dist.TCPStore(nodes[0], 0, size, True, wait_for_workers=False)
    port = comm.bcast(store.port if store else None)
    if store is None:
        store = dist.TCPStore(nodes[0], port, size, False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)


def one_thread() -> None:
    """Limit torch to one thread."""
    torch.set_num_threads(1)


def write(comm: MPI.Intracomm, file: str, **fields: Any) -> None:
    """Append one line of results, on the first learner only."""
    if comm.Get_rank() == 0:
        with Path(file).open("a") as stream:
            stream.write(json.dumps(fields) + "\n")
