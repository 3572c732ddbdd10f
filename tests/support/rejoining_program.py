"""Run by test_node_server.py: learners in rounds that leave and come again. Not a test by itself.

python rejoining_program.py alone|often FOLDER
"""

from __future__ import annotations

import random
import sys
import time
from functools import partial

import torch
from node_server_program import FOLDER, Sum, one_each, show_counts
from server_nodes import Training, fork, wait_for

from learner.system.processes import end_with_parent


def begin(learners_per_node: list[int]) -> Training:
    """Start the servers of a training."""
    training = Training(FOLDER, Sum(), 700_000, [0, 1], learners_per_node)
    for node in range(len(learners_per_node)):
        training.serve(node)
    training.begin(torch.zeros(training.count))
    return training


def alone() -> None:
    """All have left, and the last chunk is trained again: nobody else ends the round before."""
    training = begin([1, 1])
    wait_for(*[training.learn(rank, one_each(training, 3)) for rank in (0, 1)])
    for rank in (0, 1):
        wait_for(training.learn(rank, one_each(training, 1)))
    show_counts(training)
    training.end()


def often() -> None:
    """No push is lost while learners join and leave, as long as none dies."""
    training = begin([1, 2])

    def work(rank: int) -> None:
        draw, client = random.Random(rank), training.join(rank)
        gradient, weights = torch.ones(training.count), torch.empty(training.count)
        for _ in range(60):
            if draw.random() < 0.5:
                client.push_pull(gradient, weights, 1.0).wait(60)
            else:
                client.push(gradient, 1.0).wait(60)
            if draw.random() < 0.1:
                client.leave()
                time.sleep(draw.uniform(0, 0.05))
                client = training.join(rank)
        client.leave()

    wait_for(*[fork(f"learner {rank}", partial(work, rank)) for rank in range(3)])
    show_counts(training, of=3 * 60)
    training.end()


if __name__ == "__main__":
    end_with_parent()
    torch.set_num_threads(1)
    {"alone": alone, "often": often}[sys.argv[1]]()
