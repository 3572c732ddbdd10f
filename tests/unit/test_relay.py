"""Learners of two nodes with one shard: its home on one of them, a relay on the other."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from psrv import home
from psrv.relay import AtOnceRelay, RoundsRelay
from psrv.rounds import add_to_sum, missing
from psrv.rules import Downpour
from psrv.shard import Shard, ThreadedShard
from psrv.shard_file import RELAY, ShardLayout, create_shard
from psrv.window import Window

PROGRAM = Path(__file__).with_name("relay_program.py")
LAYOUT = ShardLayout(70_000, (torch.float32, torch.float32), "model")

RELAY_LAYOUT = ShardLayout(65_536, (torch.float32, torch.float32), "model", RELAY)
OPEN = """
import os, sys, torch
from pathlib import Path
from psrv.relay import AtOnceRelay
from psrv.rules import Downpour
from psrv.shard import ThreadedShard
from psrv.shard_file import RELAY, ShardLayout
from psrv.window import Window
folder = Path(sys.argv[1])
layout = ShardLayout(65_536, (torch.float32, torch.float32), "model", RELAY)
shard = ThreadedShard(folder / "relay", layout, 1)
"""


def be_killed(folder: Path, code: str) -> None:
    """Run code with the relay open, in a process that ends by a signal."""
    done = subprocess.run([sys.executable, "-c", OPEN + code, str(folder)], check=False)
    assert done.returncode == -9


@pytest.fixture
def shard(shm_folder: Path) -> Iterator[ThreadedShard]:
    create_shard(shm_folder / "home", LAYOUT, 1, learners=4)
    shard = ThreadedShard(shm_folder / "home", LAYOUT, 1)
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
def test_two_nodes(shm_folder: Path, what: str, said: str) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), what, str(shm_folder)],
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


def test_a_proxy_outlives_its_server_and_is_taken_over(shm_folder: Path) -> None:
    create_shard(shm_folder / "home", LAYOUT, 1)
    code = (
        "import sys, torch; from pathlib import Path; from psrv.shard import Shard\n"
        "from psrv.shard_file import ShardLayout\n"
        "layout = ShardLayout(70_000, (torch.float32, torch.float32), 'model')\n"
        "shard = Shard(Path(sys.argv[1]), layout, 1)\n"
        "slot = shard.members.proxy(3)\n"
        "shard.members.enter(slot, 0b1100, 5); shard.members.set_clock(slot, 7); print(slot)"
    )
    left = subprocess.run(
        [sys.executable, "-c", code, str(shm_folder / "home")], capture_output=True, check=True
    )
    slot = int(left.stdout)
    shard = ThreadedShard(shm_folder / "home", LAYOUT, 1)
    members = shard.members
    members.strike_dead()
    assert members.proxies() == {3: slot} and members.all() == [(0b1100, slot, 5)]
    assert members.slowest() == 7
    assert members.proxy(2) not in (slot, shard.slot)
    assert members.proxy(3) == slot
    members.remove(slot)
    assert members.all() == [] and set(members.proxies()) == {2}
    shard.close()


def test_a_sum_goes_to_the_home_without_what_a_killed_learner_had_begun_to_add(
    shm_folder: Path,
) -> None:
    create_shard(shm_folder / "relay", RELAY_LAYOUT, 1, learners=2)
    server = ThreadedShard(shm_folder / "relay", RELAY_LAYOUT, 1)
    relay = RoundsRelay(0, server)
    server.members.enter(server.slot, 0b01)
    add_to_sum(server, 0, 0, 0b01, torch.ones(65_536))
    be_killed(shm_folder, """
shard.members.enter(shard.slot, 0b10)
def half(parts, block):
    parts[-1][:30_000] += 10
    os.kill(os.getpid(), 9)
shard.update_block(0, half, changes=(1, 2))
""")  # fmt: skip
    assert relay.ready(range(1)) == []
    assert relay.take(0) is None
    server.members.strike_dead()
    assert relay.ready(range(1)) == [0]
    sending = relay.take(0)
    assert sending is not None and sending[0].mask == 0b01
    assert torch.frombuffer(bytearray(sending[1]), dtype=torch.float32).eq(1).all()
    server.close()


def test_a_server_with_another_slot_undoes_what_the_killed_one_had_begun_to_send(
    shm_folder: Path,
) -> None:
    create_shard(shm_folder / "relay", RELAY_LAYOUT, 1, learners=2)
    learner = Shard(shm_folder / "relay", RELAY_LAYOUT, 1)
    be_killed(shm_folder, """
shard.update_block(0, lambda parts, block: (parts[1].fill_(1), shard.count_push(block)))
relay = AtOnceRelay(0, shard, Downpour(), Window(folder / "window", 4, torch.float32))
set_progress = shard.set_progress
def die(*progress):
    set_progress(*progress)
    os.kill(os.getpid(), 9)
shard.set_progress = die
relay.take(0)
""")  # fmt: skip
    learner.close()
    server = ThreadedShard(shm_folder / "relay", RELAY_LAYOUT, 1)
    window = Window(shm_folder / "window", 4, torch.float32)
    relay = AtOnceRelay(0, server, Downpour(), window)
    assert server.slot == 0 and relay.exchanges() == set()
    window.free_but(set())
    assert relay.on_its_way(range(1)) == [] and relay.ready(range(1)) == [0]
    server.close()
