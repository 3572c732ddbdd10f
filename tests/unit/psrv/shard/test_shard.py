"""The parameter server's shards in shared memory: blocks stay whole when learners are killed."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from repository import SUPPORT
from shard_program import done
from zygote import Zygote

import psrv.shard.shard
from psrv.errors import ServerError
from psrv.shard.format import (
    BLOCKS_AT,
    LINE,
    REPLICA,
    SLOTS,
    SLOTS_AT,
    ShardLayout,
    create_shard,
    from_snapshot,
    kind_of,
)
from psrv.shard.shard import Rows, Shard, ThreadedShard

LAYOUT = ShardLayout(150_000, (torch.float32, torch.float32), "model")
PROGRAM = SUPPORT / "shard_program.py"


@pytest.fixture
def path(shm_folder: Path) -> Path:
    return shm_folder / "shard-0"


@pytest.fixture
def shard(path: Path) -> Iterator[Shard]:
    create_shard(path, LAYOUT, 3)
    shard = Shard(path, LAYOUT, 3)
    yield shard
    shard.close()


def test_every_block_is_updated_once(shard):
    seen: list[int] = []

    def work(parts: Sequence[torch.Tensor], block: int) -> None:
        seen.append(block)
        parts[0].add_(1)
        parts[1].sub_(block)

    shard.update(work)
    assert seen == [0, 1, 2] and LAYOUT.blocks == 3
    assert [done(shard, block) for block in range(3)] == [1, 1, 1]
    assert shard.rows[0].eq(1).all() and len(shard.rows[0]) == 150_000
    assert set(shard.rows[1].tolist()) == {0.0, -1.0, -2.0}


def test_work_that_raises_is_undone(shard):
    def fail(parts: Sequence[torch.Tensor], block: int) -> None:
        parts[0].fill_(7)
        raise ValueError("no")

    shard.update(lambda parts, block: parts[0].fill_(block + 1))
    with pytest.raises(ValueError, match="no"):
        shard.update(fail)
    assert set(shard.rows[0].tolist()) == {1.0, 2.0, 3.0}
    assert [done(shard, block) for block in range(3)] == [1, 1, 1]


def test_only_finished_work_is_read(shard):
    seen: list[tuple[int, set[float]]] = []
    shard.update(lambda parts, block: parts[0].fill_(block + 1))
    shard.read(lambda parts, block: seen.append((block, set(parts[0].tolist()))))
    assert seen == [(0, {1.0}), (1, {2.0}), (2, {3.0})]
    assert [done(shard, block) for block in range(3)] == [1, 1, 1]


def test_a_shard_of_another_model_or_attempt_is_refused(shard, path):
    other = ShardLayout(150_000, (torch.float32, torch.float32), "another model")
    with pytest.raises(ServerError, match="has another model"):
        Shard(path, other, 3)
    with pytest.raises(ServerError, match=r"belongs to attempt 3, and this learner to attempt 2"):
        Shard(path, LAYOUT, 2)
    with pytest.raises(ServerError, match="there is no parameter server at"):
        Shard(path.with_name("shard-1"), LAYOUT, 3)
    with pytest.raises(ServerError, match="there is no parameter server at"):
        kind_of(path.with_name("shard-1"))
    path.with_name("shard-2").write_bytes(bytes(LAYOUT.size_bytes))
    with pytest.raises(ServerError, match="is no shard"):
        kind_of(path.with_name("shard-2"))
    with pytest.raises(ServerError, match="is no shard"):
        Shard(path.with_name("shard-2"), LAYOUT, 3)


@contextmanager
def locked(path: Path, start: int, words: int) -> Iterator[Callable[[], None]]:
    """Have another process lock words of a shard until the yielded function is called."""
    code = (
        "import fcntl, os, sys\n"
        "fd = os.open(sys.argv[1], os.O_RDWR)\n"
        "fcntl.lockf(fd, fcntl.LOCK_EX, int(sys.argv[3]), int(sys.argv[2]))\n"
        "print(flush=True); sys.stdin.read()"
    )
    arguments = [str(path), str(8 * start), str(8 * words)]
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None and holder.stdin is not None
        holder.stdout.readline()
        yield holder.stdin.close


def test_learners_beyond_the_slots_are_refused(path):
    create_shard(path, LAYOUT, 3)
    with locked(path, SLOTS_AT, LINE * SLOTS), pytest.raises(ServerError, match="all 64 slots"):
        Shard(path, LAYOUT, 3)
    Shard(path, LAYOUT, 3).close()


def test_a_forked_child_does_not_remove_its_parent(shard):
    shard.members.enter(shard.slot, 1)
    if not (child := os.fork()):
        shard.close()  # as at the end of the `with` in which it was forked
        os._exit(0)
    os.waitpid(child, 0)
    assert [member.slot for member in shard.members.all()] == [shard.slot]


def test_undo_views_are_shared_by_all_blocks(shard):
    """7 billion parameters have 10⁵ blocks."""
    assert len(shard._blocks) == len(shard._undo_views) > 2
    assert len({id(views) for views in shard._undo_views}) == 2


def test_locked_blocks_are_left_for_later(path):
    layout = ShardLayout(600_000, (torch.float32,), "model")
    create_shard(path, layout, 3)
    shard, seen = Shard(path, layout, 3), list[int]()
    with locked(path, BLOCKS_AT + 5 * LINE, 1) as release:

        def work(parts: Sequence[torch.Tensor], block: int) -> None:
            seen.append(block)
            if len(seen) == 6:
                release()

        shard.update(work, first=2)
    assert seen == [2, 3, 6, 7, 8, 9, 0, 1, 4, 5]
    shard.close()


def test_rows_that_are_only_read_are_not_copied(shard):
    def fail(parts: Sequence[torch.Tensor], block: int) -> None:
        parts[1].fill_(7)
        raise ValueError("no")

    shard.update(lambda parts, block: [part.fill_(block + 1) for part in parts])
    aside = [copy.clone() for copy in shard._undo_views[0]]
    shard.update_block(0, lambda parts, block: parts[1].fill_(5), changes=Rows(1, 2))
    assert torch.equal(shard._undo_views[0][0], aside[0])
    with pytest.raises(ValueError, match="no"):
        shard.update_block(0, fail, changes=Rows(1, 2))
    assert [set(row[: LAYOUT.block_count].tolist()) for row in shard.rows] == [{1.0}, {5.0}]


def test_the_late_end_of_an_earlier_mapping_frees_no_lock(path):
    """A learner that left and joined again would count as dead, and its pushes would be lost."""
    create_shard(path, LAYOUT, 1)
    left = Shard(path, LAYOUT, 1)
    view = left.rows[0]
    left.close()
    del left
    joined = Shard(path, LAYOUT, 1)
    del view
    gc.collect()
    probe = (
        "import fcntl, sys; file = open(sys.argv[1], 'r+b')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, int(sys.argv[2]))"
    )
    at = 8 * (SLOTS_AT + joined.slot * LINE)
    done = subprocess.run(
        [sys.executable, "-c", probe, str(path), str(at)], capture_output=True, text=True
    )
    assert "BlockingIOError" in done.stderr
    joined.close()


def test_only_copied_elements_are_undone(shard):
    """A change may copy as it goes; until then the copy belongs to another block."""

    def fail(parts: Sequence[torch.Tensor], block: int) -> None:
        raise ValueError("no")

    shard.update(lambda parts, block: [part.fill_(block + 1) for part in parts])
    assert shard.undo_copies[0].ne(3).any()
    with pytest.raises(ValueError, match="no"):
        shard.update_block(2, fail, changes=Rows(copied=False))
    start = 2 * LAYOUT.block_count
    assert all(row[start:].eq(3).all() for row in shard.rows)
    assert done(shard, 2) == 1


def test_threads_of_a_process_take_turns(path):
    create_shard(path, LAYOUT, 3)
    shard = ThreadedShard(path, LAYOUT, 3)
    inside = 0

    def work(parts: Sequence[torch.Tensor], block: int) -> None:
        nonlocal inside
        assert (inside := inside + 1) == 1
        time.sleep(1e-4)
        parts[0].add_(1)
        inside -= 1

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(shard.update, work) for _ in range(40)]:
            done.result()
    assert shard.rows[0].eq(40).all()
    shard.close()


def test_a_shard_is_filled_from_a_snapshot_before_it_appears(path):
    snapshot = path.with_name("snapshot")
    rows = torch.arange(300_000.0)
    snapshot.write_bytes(rows.numpy().tobytes() + b"what else may follow")
    create_shard(path, LAYOUT, 3, learners=5, fill=from_snapshot(snapshot, 2))
    shard = Shard(path, LAYOUT, 3)
    assert torch.equal(torch.cat(shard.rows), rows) and shard.expected == 5
    shard.close()
    replica = ShardLayout(150_000, (torch.float32, torch.float32), "model", REPLICA)
    create_shard(path, replica, 3, fill=from_snapshot(snapshot, 1))
    assert kind_of(path) == REPLICA
    with pytest.raises(ServerError, match="has another model"):
        Shard(path, LAYOUT, 3)
    shard = Shard(path, replica, 3)
    assert torch.equal(shard.rows[0], rows[:150_000]) and not shard.rows[1].any()
    shard.close()
    path.unlink()
    snapshot.write_bytes(bytes(1_000_000))
    with pytest.raises(ServerError, match="row 1 has 400000 of 600000 bytes"):
        create_shard(path, LAYOUT, 3, fill=from_snapshot(snapshot, 2))
    assert list(path.parent.iterdir()) == [snapshot]


def test_a_shard_may_be_empty(path):
    layout = ShardLayout(0, (torch.float32,), "model")
    create_shard(path, layout, 3)
    shard = Shard(path, layout, 3)
    shard.update(lambda parts, block: parts[0].fill_(1))
    assert shard.all_progress() == []
    shard.close()


def test_a_lack_of_shared_memory_is_reported_with_both_numbers(path):
    free = os.statvfs(path.parent)
    large = ShardLayout(2 * free.f_blocks * free.f_frsize // 4, (torch.float32,), "large")
    with pytest.raises(ServerError, match=r"[\d,]+ MiB are needed, [\d,]+ MiB are free"):
        create_shard(path, large, 1)
    assert list(path.parent.iterdir()) == []


def run(zygote: Zygote, what: str, path: Path, times: int) -> str:
    done = zygote.run(PROGRAM, what, path, str(times), timeout_s=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.first("kills-30")
@pytest.mark.parametrize("kills", [30, pytest.param(100, marks=pytest.mark.long)])
@pytest.mark.parametrize("what", ["kills", "native_kills", "gather_kills"])
def test_no_kill_leaves_a_torn_block(path, zygote, what, kills):
    assert run(zygote, what, path, kills) == "whole True\n"


@pytest.mark.parametrize("pushes", [50_000, pytest.param(250_000, marks=pytest.mark.long)])
def test_sums_are_exact_under_contention(path, zygote, pushes):
    assert run(zygote, "count", path, pushes) == "sums True\n"


@pytest.mark.parametrize("call", ["read_block", "update_block"])
def test_a_false_deadlock_of_the_kernel_is_waited_out(shard, monkeypatch, call):
    """The kernel counts all locks of a process, of any file, as one owner's."""
    refusals = [errno.EDEADLK] * 2

    def lockf(descriptor: int, how: int, *rest: int) -> None:
        if how == fcntl.LOCK_EX and refusals:
            raise OSError(refusals.pop(), "Resource deadlock avoided")
        fcntl.lockf(descriptor, how, *rest)

    monkeypatch.setattr(psrv.shard.shard, "_lockf", lockf)
    seen: list[int] = []
    getattr(shard, call)(0, lambda parts, block: seen.append(block))
    assert seen == [0] and not refusals


def test_a_new_shard_can_replace_an_old_one(path):
    create_shard(path, LAYOUT, 3, had=[7, 8, 9])
    shard = Shard(path, LAYOUT, 3)
    assert shard.all_progress() == [(7, 0), (8, 0), (9, 0)]
    shard.close()


def test_a_shard_that_can_not_be_created_is_an_error(path):
    path.touch()
    with pytest.raises(ServerError, match=r"shard-1 can't be created: File exists"):
        create_shard(path / "shard-1", LAYOUT, 3)
