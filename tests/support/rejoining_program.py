"""Run by test_node_server.py: learners in rounds that leave or die, and come again. Not a test.

python rejoining_program.py alone|often|killed FOLDER
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial

import torch
from node_server_program import FOLDER, Sum, one_each, show_counts
from server_nodes import Training, fork, until, wait_for

from learner.system.processes import end_with_parent
from psrv.client import Client

KILLS = 9


class Whole(Sum):
    """Checks that all elements of a sum are alike, also where learners of a round were killed."""

    def step(
        self, server: Sequence[torch.Tensor], total: torch.Tensor, count: int, rate: float
    ) -> None:
        assert total.eq(count).all(), "a block was torn, or came twice, or not at all"
        super().step(server, total, count, rate)


def begin(learners_per_node: list[int], solver: Sum) -> Training:
    """Start the servers of a training."""
    training = Training(FOLDER, solver, 700_000, [0, 1], learners_per_node)
    for node in range(len(learners_per_node)):
        training.serve(node)
    training.begin(torch.zeros(training.count))
    return training


def alone() -> None:
    """All have left, and the last chunk is trained again: nobody else ends the round before."""
    training = begin([1, 1], Sum())
    wait_for(*[training.learn(rank, one_each(training, 3)) for rank in (0, 1)])
    for rank in (0, 1):
        wait_for(training.learn(rank, one_each(training, 1)))
    show_counts(training)
    training.end()


def often() -> None:
    """No push is lost while learners join and leave, as long as none dies."""
    training = begin([1, 2], Sum())

    def work(rank: int) -> None:
        draw, client = random.Random(rank), training.join(rank)
        gradient, weights = torch.ones(training.count), torch.empty(training.count)
        for _ in range(60):
            if draw.random() < 0.5:
                client.push_pull(gradient, weights, 1.0)
            else:
                client.push(gradient, 1.0)
            if draw.random() < 0.1:
                client.leave()
                time.sleep(draw.uniform(0, 0.05))
                client = training.join(rank)
        client.leave()

    wait_for(*[fork(f"learner {rank}", partial(work, rank)) for rank in range(3)])
    show_counts(training, of=3 * 60)
    training.end()


def killed() -> None:
    """Learners of both nodes, and servers, are killed at random: all the others' rounds end."""
    training, draw = begin([2, 2], Whole()), random.Random(int(os.environ.get("SEED", "3")))

    def work(client: Client, rank: int) -> None:
        gradient, weights = torch.ones(training.count), torch.empty(training.count)
        while not (FOLDER / "enough").exists():
            client.push_pull(gradient, weights, 1.0)
            (FOLDER / f"pushed-{rank}").touch()

    def start(rank: int) -> int:
        return training.learn(rank, partial(work, rank=rank))

    def pushed(ranks: Sequence[int]) -> bool:
        return all((FOLDER / f"pushed-{rank}").exists() for rank in ranks)

    learners = [start(rank) for rank in range(4)]
    until(lambda: pushed(range(4)), "first rounds")
    for number in range(KILLS):
        victims = [2, 3] if number == KILLS // 2 else draw.sample(range(4), draw.choice((1, 2)))
        for rank in victims:
            os.kill(learners[rank], signal.SIGKILL)
            os.waitpid(learners[rank], 0)
            (FOLDER / f"pushed-{rank}").unlink(missing_ok=True)
        if number % 3 == 0:
            node = draw.randrange(2)
            training.kill(node)
            training.serve(node)
        time.sleep(draw.uniform(0.0, 0.1))
        for rank in victims:
            learners[rank] = start(rank)
        if number % 2:
            until(partial(pushed, victims), f"rounds after kill {number}")
    (FOLDER / "enough").touch()
    wait_for(*learners)
    pulled = []
    for node in (0, 1):
        client = training.join(2 * node)
        client.refresh(60)
        pulled.append(torch.empty(training.count))
        client.pull(pulled[-1])
        client.leave()
    print("nodes have the same weights:", torch.equal(*pulled))
    training.end()


if __name__ == "__main__":
    end_with_parent()
    torch.set_num_threads(1)
    {"alone": alone, "often": often, "killed": killed}[sys.argv[1]]()
