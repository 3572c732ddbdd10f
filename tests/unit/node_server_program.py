"""Run by test_node_server.py: servers and learners of several nodes. Not a test by itself.

python node_server_program.py SCENARIO FOLDER
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from server_nodes import Training, wait_for

from psrv.client import Client
from psrv.rules import (
    DiLoCo,
    Downpour,
    DownpourAdagrad,
    ElasticAveraging,
    ModelAveraging,
    ParallelSGD,
    RoundSolver,
    Solver,
)

SOLVERS: dict[str, Solver | RoundSolver] = {
    "downpour": Downpour(),
    "momentum": Downpour(momentum=0.5),
    "adagrad": DownpourAdagrad(),
    "elastic": ElasticAveraging(0.3),
    "parallel": ParallelSGD(momentum=0.3),
    "averaging": ModelAveraging(),
    "diloco": DiLoCo(0.5, 0.5),
}
RATES = {"downpour": 0.05, "momentum": 0.02, "adagrad": 0.2}
FOLDER = Path(sys.argv[2])


def draw_to_one(training: Training, name: str, steps: int) -> Callable[[Client], None]:
    """Return what trains on (w - 1)² / 2."""

    def work(client: Client) -> None:
        weights = torch.empty(training.count)
        client.pull(weights).wait()
        for _ in range(steps):
            if training.solver.sends_weights:
                weights -= 0.2 * (weights - 1)
                client.push_pull(weights, weights, 0.2).wait()
            else:
                client.push_pull(weights - 1, weights, RATES.get(name, 0.1)).wait(60)
            time.sleep(0.002)

    return work


def solver(name: str) -> None:
    """Two nodes with two learners each reach the minimum."""
    training = Training(FOLDER, SOLVERS[name], learners_per_node=[2, 2])
    for node in (0, 1):
        training.serve(node)
    training.begin(torch.zeros(training.count))
    wait_for(*[training.learn(rank, draw_to_one(training, name, 150)) for rank in range(4)])
    for rank in (0, 2):
        weights = torch.empty(training.count)
        client = training.join(rank)
        training.refresh(client)
        client.pull(weights).wait()
        print(f"node {training.node_of(rank)} at 1:", float((weights - 1).abs().max()) < 0.05)
        client.leave()
    training.end()


SCENARIOS = {"solver": solver}

if __name__ == "__main__":
    torch.set_num_threads(1)
    scenario, _, argument = sys.argv[1].partition(":")
    SCENARIOS[scenario](argument)
