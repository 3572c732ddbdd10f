"""The parameter server's shards in shared memory: every block whole, whoever is killed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from psrv.errors import ServerError
from psrv.shard import Shard
from psrv.shard_file import LINE, SLOTS, SLOTS_AT, ShardLayout, create_shard

LAYOUT = ShardLayout(150_000, (torch.float32, torch.float32), "model")
PROGRAM = Path(__file__).with_name("shard_program.py")


@pytest.fixture
def path() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="dlctl-test-", dir="/dev/shm"))
    yield folder / "shard-0"
    shutil.rmtree(folder)


@pytest.fixture
def shard(path: Path) -> Iterator[Shard]:
    create_shard(path, LAYOUT, 3)
    shard = Shard(path, LAYOUT, 3)
    yield shard
    shard.close()


def test_every_block_is_worked_on_once(shard: Shard) -> None:
    seen: list[int] = []

    def work(parts: Sequence[torch.Tensor], block: int) -> None:
        seen.append(block)
        parts[0].add_(1)
        parts[1].sub_(block)

    shard.update(work, first=2)
    assert seen == [2, 0, 1] and LAYOUT.blocks == 3
    assert [shard.done(block) for block in range(3)] == [1, 1, 1]
    assert shard.rows[0].eq(1).all() and len(shard.rows[0]) == 150_000
    assert set(shard.rows[1].tolist()) == {0.0, -1.0, -2.0}


def test_work_that_raises_is_undone(shard: Shard) -> None:
    def fail(parts: Sequence[torch.Tensor], block: int) -> None:
        parts[0].fill_(7)
        raise ValueError("no")

    shard.update(lambda parts, block: parts[0].fill_(block + 1))
    with pytest.raises(ValueError, match="no"):
        shard.update(fail)
    assert set(shard.rows[0].tolist()) == {1.0, 2.0, 3.0}
    assert [shard.done(block) for block in range(3)] == [1, 1, 1]


def test_what_is_read_is_finished_work(shard: Shard) -> None:
    seen: list[tuple[int, set[float]]] = []
    shard.update(lambda parts, block: parts[0].fill_(block + 1))
    shard.read(lambda parts, block: seen.append((block, set(parts[0].tolist()))), first=1)
    assert seen == [(1, {2.0}), (2, {3.0}), (0, {1.0})]
    assert [shard.done(block) for block in range(3)] == [1, 1, 1]


def test_what_is_not_this_learners_is_refused(shard: Shard, path: Path) -> None:
    other = ShardLayout(150_000, (torch.float32, torch.float32), "another model")
    with pytest.raises(ServerError, match="has another model"):
        Shard(path, other, 3)
    with pytest.raises(ServerError, match=r"belongs to attempt 3, and this learner to attempt 2"):
        Shard(path, LAYOUT, 2)
    with pytest.raises(ServerError, match="there is no parameter server at"):
        Shard(path.with_name("shard-1"), LAYOUT, 3)
    path.with_name("shard-2").write_bytes(bytes(LAYOUT.size_bytes))
    with pytest.raises(ServerError, match="is no shard"):
        Shard(path.with_name("shard-2"), LAYOUT, 3)


def test_no_more_learners_than_slots(path: Path) -> None:
    create_shard(path, LAYOUT, 3)
    code = (
        "import fcntl, os, sys\n"
        "fd = os.open(sys.argv[1], os.O_RDWR)\n"
        "fcntl.lockf(fd, fcntl.LOCK_EX, int(sys.argv[3]), int(sys.argv[2]))\n"
        "print(flush=True); sys.stdin.read()"
    )
    arguments = [str(path), str(8 * SLOTS_AT), str(8 * LINE * SLOTS)]
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None and holder.stdin is not None
        holder.stdout.readline()
        with pytest.raises(ServerError, match="all 64 slots"):
            Shard(path, LAYOUT, 3)
        holder.stdin.close()
    Shard(path, LAYOUT, 3).close()


def test_too_little_shared_memory_is_said_with_both_numbers(path: Path) -> None:
    free = os.statvfs(path.parent)
    large = ShardLayout(2 * free.f_blocks * free.f_frsize // 4, (torch.float32,), "large")
    with pytest.raises(ServerError, match=r"[\d,]+ MiB are needed, [\d,]+ MiB are free"):
        create_shard(path, large, 1)
    assert list(path.parent.iterdir()) == []


def run(what: str, path: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), what, str(path)],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_kill_leaves_a_torn_block(path: Path) -> None:
    assert run("kills", path) == "whole True True\n"


def test_sums_are_exact_under_contention(path: Path) -> None:
    assert run("count", path) == "sums True\n"
