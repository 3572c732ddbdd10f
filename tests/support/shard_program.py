"""Run by test_shard.py: learners are forks of a process that has one thread. Not a test by itself.

python shard_program.py kills|native_kills|gather_kills|count PATH TIMES
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from server_nodes import fork

from learner.system.processes import end_with_parent
from psrv.push.push import AtOnce
from psrv.shard.format import BLOCKS_AT, LINE, PRIMARY, REPLICA, ShardLayout, create_shard
from psrv.shard.shard import Shard
from psrv.solvers.native import build, native_for
from psrv.solvers.solver import Downpour

LAYOUT = ShardLayout(200_000, (torch.float32, torch.float64), "model")
SMALL = ShardLayout(7, (torch.float64,), "small")
LEARNERS = 3
TIMES = int(sys.argv[3]) if __name__ == "__main__" else 0
"""How many kills, or pushes of each learner."""


def done(shard: Shard, block: int) -> int:
    """Return how often a block was worked on."""
    return shard._words[BLOCKS_AT + block * LINE] // 2


def check(whole: bool) -> None:
    """Say that a reader saw half of somebody's work."""
    if not whole:
        print("torn", flush=True)


def add_one(parts: Sequence[torch.Tensor], block: int) -> None:
    """Add 1 to every element, in many stores."""
    for part in parts:
        for piece in part.split(1000):
            piece.add_(1)


def kills(path: Path) -> None:
    """Kill learners at random while they add 1 to every element of two rows."""
    create_shard(path, LAYOUT, 1)

    def update(shard: Shard) -> None:
        shard.update(add_one, random.randrange(LAYOUT.blocks))

    _kills(path, LAYOUT, update, lambda times: (times, times))


def native_kills(path: Path) -> None:
    """The same with pushes that make copies for undoing as they go. Velocities are 1, 0, 1, …"""
    _native_kills(
        path, Downpour(momentum=-1.0), PRIMARY, lambda times: ((times + 1) // 2, times % 2)
    )


def gather_kills(path: Path) -> None:
    """The same where another node is the primary: a total."""
    _native_kills(path, Downpour(), REPLICA, lambda times: (0, times))


def _native_kills(
    path: Path, solver: Downpour, kind: int, expected: Callable[[int], tuple[int, int]]
) -> None:
    assert build(path.parent, solver) == "pushes are compiled by cc"
    layout = ShardLayout(200_000, (torch.float32, torch.float32), "plain", kind)
    create_shard(path, layout, 1)
    gradient, weights = torch.ones(layout.count), torch.zeros(layout.count)
    made: dict[int, AtOnce] = {}

    def update(shard: Shard) -> None:
        assert native_for(shard, solver) is not None
        pushes = made.setdefault(os.getpid(), AtOnce([shard], solver, 0))
        pushes.push(gradient, weights, -1.0)

    _kills(path, layout, update, expected)


def _kills(
    path: Path,
    layout: ShardLayout,
    update: Callable[[Shard], None],
    expected: Callable[[int], tuple[int, int]],
) -> None:
    """Kill learners at random while they work; in every block all work is whole."""

    def learner() -> None:
        shard = Shard(path, layout, 1)
        while True:
            update(shard)
            shard.read(lambda parts, _: check(all(part.eq(part[0]).all() for part in parts)))

    random.seed(1)
    children = [fork("learner", learner) for _ in range(LEARNERS)]
    odd = 0
    killed = 0
    while killed < TIMES or not odd:  # at least one in the middle of a block
        killed += 1
        time.sleep(random.uniform(0.0, 0.03))
        victim = children.pop(0)
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
        odd += unfinished(path, layout)
        children.append(fork("learner", learner))
    time.sleep(0.1)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    shard = Shard(path, layout, 1)
    update(shard)
    for block in range(layout.blocks):
        start = block * layout.block_count
        for row, value in zip(shard.rows, expected(done(shard, block)), strict=True):
            found = set(row[start : start + layout.block_count].tolist())
            assert found == {float(value)}, (block, found, done(shard, block))
    print("whole", sum(done(shard, block) for block in range(layout.blocks)) > 100)


def unfinished(path: Path, layout: ShardLayout) -> int:
    """Return how many blocks have an odd sequence number just now."""
    words = memoryview(path.read_bytes()[: 8 * (BLOCKS_AT + layout.blocks * LINE)]).cast("q")
    return sum(words[BLOCKS_AT + n * LINE] % 2 for n in range(layout.blocks))


def count(path: Path) -> None:
    """Sum integers under contention."""
    create_shard(path, SMALL, 1)

    def learner(number: int) -> None:
        shard = Shard(path, SMALL, 1)
        for _ in range(TIMES):
            shard.update(lambda parts, _: parts[0].add_(number))

    children = [fork("learner", lambda number=number: learner(number)) for number in (1, 2, 3, 4)]
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
    shard = Shard(path, SMALL, 1)
    assert done(shard, 0) == 4 * TIMES
    print("sums", set(shard.rows[0].tolist()) == {10.0 * TIMES})


if __name__ == "__main__":
    end_with_parent()
    torch.set_num_threads(1)
    plays = {
        "kills": kills, "native_kills": native_kills, "gather_kills": gather_kills, "count": count,
    }  # fmt: skip
    plays[sys.argv[1]](Path(sys.argv[2]))
