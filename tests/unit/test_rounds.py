"""Rounds of all learners: sums in rank order, whoever is killed and comes back."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from psrv.errors import ServerError
from psrv.rounds import Rounds
from psrv.shard import Shard
from psrv.shard_file import ShardLayout, create_shard

PROGRAM = Path(__file__).with_name("rounds_program.py")
LAYOUT = ShardLayout(70_000, (torch.float32, torch.float32), "model")


@pytest.fixture
def path() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="dlctl-test-", dir="/dev/shm"))
    yield folder / "shard-0"
    shutil.rmtree(folder)


@pytest.fixture
def shard(path: Path) -> Iterator[Shard]:
    create_shard(path, LAYOUT, 1)
    shard = Shard(path, LAYOUT, 1)
    yield shard
    shard.close()


def run(what: str, path: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), what, str(path)],
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_sums_are_in_rank_order_bit_by_bit(path: Path) -> None:
    assert run("bits", path) == "bits True {6.0}\n"


def test_a_killed_learner_is_not_waited_for_and_comes_back(path: Path) -> None:
    assert run("kills", path) == "rounds True True\n"


def test_one_learner_alone(shard: Shard) -> None:
    rounds = Rounds(shard, rank=0, learners=1, timeout_s=1)
    step = LAYOUT.block_count
    mine = torch.split(torch.arange(70_000.0), step)
    seen = torch.empty(70_000)
    for _ in range(2):
        rounds.run(
            mine,
            lambda rows, total, count, _: rows[0].add_(total, alpha=count),
            lambda row, block: seen[block * step :][: len(row)].copy_(row),
        )
    assert torch.equal(seen, 2 * torch.arange(70_000.0))
    assert rounds.round == 2
    assert {shard.progress(block) for block in range(LAYOUT.blocks)} == {(2, 0)}


def test_learners_that_do_not_come_are_named(shard: Shard) -> None:
    with pytest.raises(ServerError, match=r"of 3 learners 2 have not joined .* only rank 1\n"):
        Rounds(shard, rank=1, learners=3, timeout_s=0.05)
    with pytest.raises(ServerError, match="62 learners at most"):
        Rounds(shard, rank=0, learners=63, timeout_s=0.05)


def test_a_step_that_fails_is_undone_and_can_be_taken_again(shard: Shard) -> None:
    def fail(rows: Sequence[torch.Tensor], total: torch.Tensor, *_: object) -> None:
        rows[0].fill_(7)
        total.fill_(7)
        raise ValueError("no step")

    rounds = Rounds(shard, rank=0, learners=1, timeout_s=1)
    mine = torch.split(torch.ones(70_000), LAYOUT.block_count)
    with pytest.raises(ValueError, match="no step"):
        rounds.run(mine, fail, lambda *_: None)
    assert [shard.progress(block) for block in range(LAYOUT.blocks)] == [(0, 1), (0, 0)]
    assert not shard.rows[0].any()
    rounds.run(mine, lambda rows, total, *_: rows[0].add_(total), lambda *_: None)
    assert shard.rows[0].eq(1).all()
