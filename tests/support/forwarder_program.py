"""Run by test_forwarder.py: two nodes, whose learners are forks of a process of one thread.

python forwarder_program.py bits|[native_]count|[native_]elastic FOLDER
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from server_play import Pair, serve, whole
from shard_program import end_with_parent, fork

from dlctl.contract import Parameters
from psrv.push.push import AtOnce, InRounds
from psrv.push.waiting import WaitPolicy
from psrv.shard.format import PRIMARY, REPLICA, ShardLayout, create_shard
from psrv.shard.shard import Shard
from psrv.solvers.native import build
from psrv.solvers.partition import layout_of
from psrv.solvers.solver import Downpour, ElasticAveraging, RoundSolver, Solver

COUNT, LEARNERS, NODE_1 = 150_000, 4, 0b1100
PUSHES = 150
PARAMETERS = Parameters(COUNT, "float32", 2, "forwarder")


class Descent:
    """Steps of SGD."""

    rows = 0
    sends_weights = False

    def step(
        self, server: Sequence[torch.Tensor], total: torch.Tensor, count: int, rate: float
    ) -> None:
        """Take one."""
        server[0].sub_(total, alpha=rate / count)


folder = Path(sys.argv[2])
paths = folder / "primary", folder / "forwarder"


def make(solver: Solver | RoundSolver) -> list[ShardLayout]:
    made = [layout_of(PARAMETERS, 1, 0, solver, kind) for kind in (PRIMARY, REPLICA)]
    if sys.argv[1].startswith("native"):
        assert build(folder, solver) == "pushes are compiled by cc"
    create_shard(paths[0], made[0], 1, learners=LEARNERS)
    create_shard(paths[1], made[1], 1, learners=LEARNERS // 2)
    return made


def open_here(rank: int, made: list[ShardLayout]) -> Shard:
    return Shard(paths[rank // 2], made[rank // 2], 1)


def start_server(made: list[ShardLayout], solver: Solver | RoundSolver) -> int:
    stop = folder / "stop"
    return fork(lambda: serve([Pair(paths, made, solver, 1, NODE_1)], stop.exists))


def start_all(learner: Callable[[int], None]) -> list[int]:
    return [fork(lambda rank=rank: learner(rank)) for rank in range(LEARNERS)]


def wait_for(children: Sequence[int]) -> None:
    for child in children:
        assert os.waitpid(child, 0)[1] == 0


def end(server: int, made: list[ShardLayout]) -> list[Shard]:
    """End the server, and return what it has left: the primary and the forwarder."""
    (folder / "stop").touch()
    wait_for([server])
    return [Shard(path, layout, 1) for path, layout in zip(paths, made, strict=True)]


def kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def values(rank: int, number: int) -> torch.Tensor:
    return torch.randn(COUNT, generator=torch.Generator().manual_seed(97 * number + rank))


def bits() -> None:
    """Compare with sums in rank order, in each node first, bit by bit."""
    solver = Descent()
    made = make(solver)

    def learner(rank: int) -> None:
        shard = open_here(rank, made)
        pushes = InRounds([shard], solver, rank, LEARNERS, WaitPolicy(30))
        weights = torch.empty(COUNT)
        expected = torch.zeros(COUNT)
        for number in range(3):
            mine = [values(other, number) for other in range(LEARNERS)]
            pushes.push(mine[rank], weights, 0.1)
            expected.sub_((mine[0] + mine[1]) + (mine[2] + mine[3]), alpha=0.1 / 4)
            assert torch.equal(weights, expected), (rank, number)
        shard.close()

    server = start_server(made, solver)
    wait_for(start_all(learner))
    end(server, made)
    print("bits")


def count() -> None:
    """Sum integers that learners of both nodes push; one of each node is killed meanwhile."""
    solver = Downpour()
    made = make(solver)

    def learner(rank: int, steps: int) -> None:
        shard = open_here(rank, made)
        pushes, mine = AtOnce([shard], solver, rank), torch.full((COUNT,), -1.0)
        for _ in range(steps):
            pushes.push(mine, None, 1.0)
        shard.close()

    server = start_server(made, solver)
    doomed = [fork(lambda rank=rank: learner(rank, 10**9)) for rank in (1, 3)]
    time.sleep(0.3)
    for child in doomed:
        kill(child)
    wait_for(start_all(lambda rank: learner(rank, PUSHES)))
    primary, forwarder = end(server, made)
    seen = [pushes for pushes, _ in primary.all_progress()]
    print("sums", whole(primary), torch.equal(primary.rows[0], forwarder.rows[0]),
          [int(primary.rows[0][n * primary.layout.block_count]) for n in range(len(seen))] == seen,
          min(seen) > LEARNERS * PUSHES)  # fmt: skip


def elastic() -> None:
    """Center and learners of both nodes draw each other, and none of it is lost on the way."""
    solver = ElasticAveraging(0.2)
    made = make(solver)

    def learner(rank: int) -> None:
        shard = open_here(rank, made)
        pushes, mine = AtOnce([shard], solver, rank), torch.full((COUNT,), float(rank))
        for _ in range(60):
            pushes.push(mine, mine, 0.0)
        shard.close()
        torch.save(mine, folder / f"{rank}.pt")

    server = start_server(made, solver)
    wait_for(start_all(learner))
    primary, forwarder = end(server, made)
    ends = [torch.load(folder / f"{rank}.pt") for rank in range(LEARNERS)]
    total = primary.rows[0] + sum(ends)
    print("center", bool((primary.rows[0] - forwarder.rows[0]).abs().max() < 1e-4),
          bool((total - sum(range(LEARNERS))).abs().max() < 1e-3))  # fmt: skip


if __name__ == "__main__":
    end_with_parent()
    torch.set_num_threads(1)
    plays = {"bits": bits, "count": count, "elastic": elastic}
    plays[sys.argv[1].removeprefix("native_")]()
