"""Run by test_rounds.py: learners are forks of a process of one thread. Not a test by itself.

python rounds_program.py bits|kills|native_kills FOLDER
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from server_nodes import fork
from shard_program import unfinished

from learner.system.processes import end_with_parent
from psrv.push.push import InRounds
from psrv.push.rounds import Rounds, Step, Turn
from psrv.push.waiting import WaitPolicy
from psrv.shard.format import ShardLayout, create_shard
from psrv.shard.shard import Shard
from psrv.solvers.native import build, native_for
from psrv.solvers.solver import ParallelSGD

LAYOUT = ShardLayout(150_000, (torch.float32,) * 3, "rounds")
ROUNDS, LEARNERS, KILLS = 40, 4, 12
STEP = LAYOUT.block_count


def values(rank: int, number: int) -> torch.Tensor:
    """Return what a learner adds in a round."""
    return torch.randn(LAYOUT.count, generator=torch.Generator().manual_seed(97 * number + rank))


def descend(rows: Sequence[torch.Tensor], total: torch.Tensor, count: int, rate: float) -> None:
    """Take a step."""
    rows[0].sub_(total / count, alpha=rate)
    rows[1].add_(1)


def take_part(rounds: Rounds, turn: Turn, mine: torch.Tensor, step: Step) -> None:
    """Take part in a round."""
    rounds.add(torch.split(mine, STEP), 0.1, step)
    rounds.finish(step, lambda *_: None)
    turn.number += 1


def train(path: Path, rank: int, until: int, learners: int = LEARNERS) -> None:
    """Take part up to a round."""
    shard = Shard(path, LAYOUT, 1)
    turn = Turn([shard], rank, learners, WaitPolicy(30))
    rounds = Rounds(shard, turn)
    while turn.number < until:
        take_part(rounds, turn, values(rank, turn.number), descend)
    shard.close()


def bits(path: Path) -> None:
    """Compare with the sum in rank order, bit by bit."""
    create_shard(path, LAYOUT, 1)
    children = [fork("learner", lambda rank=rank: train(path, rank, 6)) for rank in range(LEARNERS)]
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
    weights = torch.zeros(LAYOUT.count)
    for number in range(6):
        total = values(0, number)
        for rank in range(1, LEARNERS):
            total += values(rank, number)
        weights.sub_(total / LEARNERS, alpha=0.1)
    shard = Shard(path, LAYOUT, 1)
    print("bits", torch.equal(shard.rows[0], weights), set(shard.rows[1].tolist()))


def kills(path: Path) -> None:
    """Kill learners at random and start them again: the others continue, every round is whole."""
    random.seed(int(os.environ.get("SEED", "2")))
    create_shard(path, LAYOUT, 1)

    def counting(rows: Sequence[torch.Tensor], total: torch.Tensor, count: int, block: int) -> None:
        assert total.eq(count).all(), "a block was torn"
        rows[0].add_(total)
        rows[1].add_(count)

    def learner(rank: int) -> None:
        shard = Shard(path, LAYOUT, 1)
        turn = Turn([shard], rank, LEARNERS, WaitPolicy(30))
        rounds, ones = Rounds(shard, turn), torch.ones(LAYOUT.count)
        while turn.number < ROUNDS * 10:
            turn.catch_up()
            take_part(rounds, turn, ones, counting)
        shard.close()

    children = {rank: fork("learner", lambda rank=rank: learner(rank)) for rank in range(LEARNERS)}
    time.sleep(0.3)
    for _ in range(KILLS):
        time.sleep(random.uniform(0.0, 0.1))
        rank = random.randrange(LEARNERS)
        os.kill(children[rank], signal.SIGKILL)
        os.waitpid(children[rank], 0)
        time.sleep(random.uniform(0.0, 0.1))
        children[rank] = fork("learner", lambda rank=rank: learner(rank))
    for child in children.values():
        assert os.waitpid(child, 0)[1] == 0
    shard = Shard(path, LAYOUT, 1)
    assert torch.equal(shard.rows[0], shard.rows[1])
    done = {shard.progress(block) for block in range(LAYOUT.blocks)}
    least, most = float(shard.rows[0].min()), float(shard.rows[0].max())
    print(
        "rounds", done == {(10 * ROUNDS, 0)}, 10 * ROUNDS < least <= most <= 10 * ROUNDS * LEARNERS
    )


def native_kills(path: Path) -> None:
    """The same with steps that make copies for undoing as they go. Velocities are 1, 0, 1, …

    The first one lives, so nobody is missing in a round of whom others are not.
    """
    random.seed(int(os.environ.get("SEED", "3")))
    solver = ParallelSGD(momentum=-1.0)
    assert build(path.parent, solver) == "pushes are compiled by cc"
    create_shard(path, LAYOUT, 1)
    until = 80 * ROUNDS

    def learner(rank: int) -> None:
        shard = Shard(path, LAYOUT, 1)
        assert native_for(shard, solver) is not None
        pushes = InRounds([shard], solver, rank, 3, WaitPolicy(30))
        ones, weights = torch.ones(LAYOUT.count), torch.zeros(LAYOUT.count)
        while pushes._turn.number < until:
            pushes.push(ones, weights, -1.0)
            assert weights.eq(weights[0]).all(), "a block was torn"
        shard.close()

    children = {rank: fork("learner", lambda rank=rank: learner(rank)) for rank in range(3)}
    time.sleep(0.3)
    odd = 0
    for _ in range(6 * KILLS):
        time.sleep(random.uniform(0.0, 0.05))
        rank = random.choice((1, 2, 2, 2))  # the last one takes the step
        os.kill(children[rank], signal.SIGKILL)
        os.waitpid(children[rank], 0)
        odd += unfinished(path, LAYOUT)
        children[rank] = fork("learner", lambda rank=rank: learner(rank))
    for child in children.values():
        assert os.waitpid(child, 0)[1] == 0
    shard = Shard(path, LAYOUT, 1)
    weights, velocity, _ = shard.rows
    print("rounds", weights.eq(until // 2).all().item(), velocity.eq(0).all().item(), odd > 0)


if __name__ == "__main__":
    end_with_parent()
    torch.set_num_threads(1)
    {"bits": bits, "kills": kills, "native_kills": native_kills}[sys.argv[1]](Path(sys.argv[2]))
