"""Learners of two nodes with one shard: its home on one of them, a relay on the other."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from psrv import home
from psrv.rounds import missing
from psrv.shard import ThreadedShard
from psrv.shard_file import ShardLayout, create_shard

PROGRAM = Path(__file__).with_name("relay_program.py")
LAYOUT = ShardLayout(70_000, (torch.float32, torch.float32), "model")


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="dlctl-test-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def shard(folder: Path) -> Iterator[ThreadedShard]:
    create_shard(folder / "home", LAYOUT, 1, learners=4)
    shard = ThreadedShard(folder / "home", LAYOUT, 1)
    yield shard
    shard.close()


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("bits", "bits"),
        ("kills", "rounds True True True"),
        ("count", "sums True True True True"),
        ("elastic", "center True True"),
    ],
)
def test_two_nodes(folder: Path, what: str, said: str) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), what, str(folder)],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{said}\n", "")


def add(rows: Sequence[torch.Tensor], total: torch.Tensor, count: int, block: int) -> None:
    rows[0].add_(total, alpha=100 * count)


def test_a_node_adds_in_the_turn_of_its_lowest_rank(shard: ThreadedShard) -> None:
    first, last = (shard.members.proxy(node) for node in (1, 2))
    assert first is not None and last is not None
    shard.members.enter(first, 0b0011)
    shard.members.enter(last, 0b1100)
    ones = torch.ones(LAYOUT.block_count)
    assert not home.add_sum(shard, 0, 0, 0b1000, ones, add)  # of its own ranks one has died
    assert home.add_sum(shard, 0, 0, 0b0011, 2 * ones, add)
    assert home.add_sum(shard, 0, 0, 0b0011, 2 * ones, add)  # told twice
    assert home.weights_after(shard, 0, 1, add, ones.clone()) is None
    assert home.add_sum(shard, 0, 0, 0b1000, ones, add)
    weights = torch.empty(LAYOUT.block_count)
    assert home.weights_after(shard, 0, 1, add, weights) == 1 and weights.eq(900).all()
    assert home.add_sum(shard, 0, 0, 0b1000, ones, add)  # too late
    assert not home.add_sum(shard, 0, 2, 0b0011, ones, add)  # too early
    assert shard.progress(0) == (1, 0) and home.next_round(shard) == 2


def test_a_round_ends_without_a_node_that_has_nobody_left(shard: ThreadedShard) -> None:
    here, there = (shard.members.proxy(node) for node in (1, 2))
    assert here is not None and there is not None
    shard.members.enter(here, 0b01)
    shard.members.enter(there, 0b10)
    weights = torch.ones(LAYOUT.block_count)
    assert home.add_sum(shard, 0, 0, 0b01, weights, add)
    assert [member.slot for member in missing(shard, *shard.progress(0))] == [there]
    shard.members.pause(there)
    assert home.weights_after(shard, 0, 1, add, weights) == 1 and weights.eq(100).all()


def test_a_proxy_outlives_its_server_and_is_taken_over(folder: Path) -> None:
    create_shard(folder / "home", LAYOUT, 1)
    code = (
        "import sys, torch; from pathlib import Path; from psrv.shard import Shard\n"
        "from psrv.shard_file import ShardLayout\n"
        "layout = ShardLayout(70_000, (torch.float32, torch.float32), 'model')\n"
        "shard = Shard(Path(sys.argv[1]), layout, 1)\n"
        "slot = shard.members.proxy(3)\n"
        "shard.members.enter(slot, 0b1100, 5); shard.members.set_clock(slot, 7); print(slot)"
    )
    left = subprocess.run(
        [sys.executable, "-c", code, str(folder / "home")], capture_output=True, check=True
    )
    slot = int(left.stdout)
    shard = ThreadedShard(folder / "home", LAYOUT, 1)
    members = shard.members
    members.strike_dead()
    assert members.proxies() == {3: slot} and members.all() == [(0b1100, slot, 5)]
    assert members.slowest() == 7
    assert members.proxy(2) not in (slot, shard.slot)
    assert members.proxy(3) == slot
    members.remove(slot)
    assert members.all() == [] and set(members.proxies()) == {2}
    shard.close()
