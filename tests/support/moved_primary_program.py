"""Run by test_node_server.py: a node is lost, and its shard moves. Not a test by itself.

python moved_primary_program.py at_once|in_rounds FOLDER
"""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial

import torch
from node_server_program import FOLDER, Sum, one_each, show_counts
from server_nodes import Training, until, wait_for

from learner.system.processes import end_with_parent
from psrv.client import Client
from psrv.solvers.solver import Downpour


def at_once() -> None:
    """A shard moves to a node that had seen less of it than another one, which only pulls then."""
    training = Training(FOLDER, Downpour(), 300_000, [0, 1, 2], [1, 1, 1])
    for node in range(3):
        training.serve(node)
    training.begin(torch.zeros(training.count))

    def push(rank: int, value: float) -> None:
        gradient = torch.full((training.count,), value)
        wait_for(training.learn(rank, lambda client: client.push(gradient, 1.0).wait()))

    push(2, 1.0)
    push(0, 10.0)
    training.kill(1)
    training.lose(1, [0, 2, 2])
    until(lambda: "primary of shard 1 now" in training.log(2), "the new primary")
    push(2, 1.0)  # as many pushes as node 0 has seen, but others
    seen = []
    for rank in (0, 2):
        client, weights = training.join(rank), torch.empty(training.count)
        client.refresh(60)
        client.pull(weights).wait()
        client.leave()
        seen.append(weights)
    print("the same on both nodes:", torch.equal(*seen))
    training.end()


def in_rounds() -> None:
    """A shard moves between two rounds; in the next one the first node to come does not stand."""
    training = Training(FOLDER, Sum(), 300_000, [0, 1, 2], [1, 1, 1])
    for node in range(3):
        training.serve(node)
    training.begin(torch.zeros(training.count))

    def work(client: Client, rank: int) -> None:
        one_each(training, 5)(client)
        (FOLDER / f"done-{rank}").touch()
        until((FOLDER / f"go-{rank}").exists, "the other rounds")
        one_each(training, 5)(client)

    learners = [training.learn(rank, partial(work, rank=rank)) for rank in range(3)]
    until(lambda: len(list(FOLDER.glob("done-*"))) == 3, "the first rounds")
    os.kill(learners[1], signal.SIGKILL)
    os.waitpid(learners.pop(1), 0)
    training.kill(1)
    (FOLDER / "go-0").touch()
    training.lose(1, [0, 2, 2])
    until(lambda: "primary of shard 1 now" in training.log(2), "the new primary")
    time.sleep(0.5)
    (FOLDER / "go-2").touch()
    wait_for(*learners)
    show_counts(training)
    training.end()


if __name__ == "__main__":
    end_with_parent()
    torch.set_num_threads(1)
    {"at_once": at_once, "in_rounds": in_rounds}[sys.argv[1]]()
