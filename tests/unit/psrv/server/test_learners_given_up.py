"""Learners that are given up before the first round: no primary and no forwarder waits for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from dlctl.contract import Homes, Parameters, server_dir, snapshot_file
from psrv.push.snapshots import write_snapshot
from psrv.server.shard_files import Settings, ShardFiles
from psrv.server.shards import NodeShards, learners_left
from psrv.solvers.partition import ShardSet
from psrv.solvers.solver import ParallelSGD
from psrv.transport.base import DisconnectedError

COUNT, LEARNERS = 1024, [2, 2]
Make = Callable[[int], NodeShards]


@pytest.fixture
def make(shm_folder: Path, tmp_path: Path) -> Iterator[Make]:
    """Makes the shards of one of two nodes. Node 0 is the primary of the only shard."""
    solver, parameters = ParallelSGD(), Parameters(COUNT, "float32", 1, "model")
    (tmp_path / server_dir(1)).mkdir(parents=True)
    write_snapshot(tmp_path / snapshot_file(1, 0), [(0, [torch.zeros(COUNT)])], COUNT)
    made: list[NodeShards] = []

    def dial(*_: object) -> None:
        raise DisconnectedError("nobody is there")

    def shards(node: int) -> NodeShards:
        settings = Settings(1, node, LEARNERS, solver, "")
        shards = ShardSet(shm_folder / str(node), parameters, 1, 1, tmp_path)
        made.append(
            NodeShards(
                ShardFiles(shards, settings), Homes(1, [0]), settings,
                dial=dial, log=lambda line: None, fail=lambda error: None,  # type: ignore[arg-type]
            )
        )  # fmt: skip
        return made[-1]

    yield shards
    for each in made:
        each.close()


@pytest.mark.parametrize(("node", "waited_for"), [(0, [4, 3, 1]), (1, [2, 1, 1])])
def test_learners_that_were_given_up_are_not_waited_for(make, node, waited_for):
    shards = make(node)
    links = shards._links
    seen = [shards._shards[0].expected]
    for lost in ([3], [1, 2, 3]):
        shards.apply_placement(Homes(len(seen) + 1, [0], lost_learners=lost))
        seen.append(shards._shards[0].expected)
    assert seen == waited_for
    assert shards._links == links  # nothing has moved


@pytest.mark.parametrize(
    ("placement", "left"),
    [
        (Homes(1, [0]), [2, 3]),
        (Homes(2, [0], [1]), [2, 0]),
        (Homes(3, [0], [1], lost_learners=[0, 4]), [1, 0]),
        (Homes(2, [0], lost_learners=[2, 3]), [2, 1]),
    ],
)
def test_learners_left_counts_each_node_s_learners(placement, left):
    assert learners_left(placement, [2, 3]) == left
