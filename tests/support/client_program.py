"""Run by test_server_client.py: learners are forks of a process of one thread. Not a test itself.

python client_program.py SOLVER FOLDER

Learners draw the weights to 1; a killed one, a late one and two shards make no difference.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
from quadratic import SOLVERS, take_step
from shard_program import end_with_parent, fork

from dlctl.contract import Parameters
from psrv.client import join
from psrv.push.waiting import WaitPolicy
from psrv.shard.format import PRIMARY, create_shard
from psrv.shard.shard import Shard
from psrv.solvers.partition import ShardSet, layout_of
from psrv.solvers.solver import RoundSolver

COUNT, RANKS, DOOMED, STEPS = 300_000, (0, 2, 3), 1, 400
name = sys.argv[1]
solver = SOLVERS[name]
folder = Path(sys.argv[2])
in_rounds = isinstance(solver, RoundSolver)
parameters = Parameters(COUNT, "float32", 1 + solver.rows, "quadratic")
layouts = [layout_of(parameters, 2, shard, solver, PRIMARY) for shard in range(2)]
paths = [folder / f"shard-{n}" for n in range(len(layouts))]


def learn(rank: int, steps: int) -> None:
    """Train so many steps."""
    client = join(
        ShardSet(folder, parameters, 2, 1),
        solver,
        WaitPolicy(30),
        rank=rank,
        learners=1 + len(RANKS),
    )
    weights = torch.empty(COUNT)
    client.pull(weights).wait()
    for step in range(steps):
        take_step(client, weights, name)
        if rank == DOOMED and step == 3:
            (folder / "pushing").touch()
    client.leave()


def main() -> None:
    """Let learners train, one of which is killed and comes back late."""
    torch.set_num_threads(1)
    children = [fork(lambda rank=rank: learn(rank, STEPS)) for rank in RANKS]
    doomed = fork(lambda: learn(DOOMED, 10**9))
    time.sleep(0.3)  # they wait for the server
    for path, layout in zip(paths, layouts, strict=True):
        create_shard(path, layout, 1)
    while not (folder / "pushing").exists():
        time.sleep(0.01)
    os.kill(doomed, signal.SIGKILL)
    os.waitpid(doomed, 0)
    children.append(fork(lambda: learn(DOOMED, 20)))
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
    views = [Shard(path, layout, 1) for path, layout in zip(paths, layouts, strict=True)]
    print("at 1:", all(float((view.rows[0] - 1).abs().max()) < 0.02 for view in views))
    blocks = [(view, block) for view in views for block in range(view.layout.blocks)]
    if in_rounds:
        rounds = {view.progress(block) for view, block in blocks}
        print("pushes:", len(rounds) == 1, min(rounds) >= (STEPS, 0))
    else:
        pushes = {view.progress(block)[0] for view, block in blocks}
        print("pushes:", len(pushes) <= 2, min(pushes) >= len(RANKS) * STEPS)


end_with_parent()
main()
