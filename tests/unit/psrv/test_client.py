"""Learners of one node with a parameter server: push, pull, join, leave and die."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from repository import SUPPORT

from dlctl import contract
from dlctl.contract import Parameters
from psrv.client import Client, join
from psrv.errors import LateError, ServerError
from psrv.push import waiting
from psrv.push.flow_control import MOST
from psrv.push.snapshots import fresh_snapshots, write_snapshot
from psrv.push.waiting import WaitPolicy
from psrv.shard.format import COUNT, PRIMARY, REPLICA, SLOTS, create_shard
from psrv.shard.private_folder import mark_removed
from psrv.solvers.partition import ShardSet, split_evenly
from psrv.solvers.solver import Downpour, ElasticAveraging, ParallelSGD, RoundSolver, Solver

PARAMETERS = Parameters(170_000, "float32", 1, "model")


def make(
    folder: Path, *kinds: int, solver: Solver | RoundSolver | None = None, learners: int = 0
) -> ShardSet:
    """Create shards of these kinds."""
    shards = ShardSet(folder, PARAMETERS, len(kinds), 1)
    for number, kind in enumerate(kinds):
        layout = shards.layout(number, solver or Downpour(), kind)
        create_shard(shards.path(number), layout, 1, learners=learners)
    return shards


def two(folder: Path) -> ShardSet:
    """Return a set of two shards, which need not exist."""
    return ShardSet(folder, PARAMETERS, 2, 1)


@pytest.fixture
def client(shm_folder: Path) -> Iterator[Client]:
    client = join(make(shm_folder, PRIMARY, PRIMARY), Downpour(), WaitPolicy(1))
    yield client
    client.leave()


@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 500))
def test_shards_are_even_and_make_the_whole(count, shards, step):
    ranges = split_evenly(count, shards, step)
    assert len(ranges) == shards and ranges[0][0] == 0 and ranges[-1][1] == count
    assert all(a[1] == b[0] for a, b in zip(ranges, ranges[1:], strict=False))
    blocks = [-(-(stop - start) // step) for start, stop in ranges]
    assert max(blocks) - min(blocks) <= 1


def test_push_and_pull(client):
    gradient, weights = torch.arange(170_000.0), torch.empty(170_000, dtype=torch.float64)
    client.push(gradient, 1.0)
    client.push_pull(gradient, weights, 1.0)
    assert torch.equal(weights, -2.0 * torch.arange(170_000.0, dtype=torch.float64))
    again = torch.empty(170_000, dtype=torch.bfloat16)
    client.pull(again)
    assert torch.equal(again, weights.to(torch.bfloat16))


@pytest.mark.parametrize(
    "wrong",
    [
        torch.zeros(PARAMETERS.count - 1),
        torch.zeros(1, PARAMETERS.count),
        torch.zeros(PARAMETERS.count, device="meta"),
    ],
    ids=["short", "two dimensions", "another device"],
)
def test_a_tensor_that_does_not_fit_changes_nothing(client, wrong):
    fits = torch.zeros(PARAMETERS.count)
    client.push(torch.ones(PARAMETERS.count), 0.1)
    begin = [
        partial(client.push, wrong, 0.1),
        partial(client.pull, wrong),
        partial(client.push_pull, fits, wrong, 0.1),
        partial(client.push_pull, wrong, fits, 0.1),
    ]
    for each in begin:
        with pytest.raises(ServerError, match=r"does not fit .*\(170000,\) on cpu"):
            each()
    client.pull(fits)
    assert torch.equal(fits, torch.full_like(fits, -0.1))


@pytest.mark.parametrize("solver", [Downpour(), ParallelSGD()], ids=["at once", "in rounds"])
def test_a_leaving_learner_warns_of_pushes_that_reached_no_primary(shm_folder, solver):
    said: list[str] = []
    shards = make(shm_folder, REPLICA, solver=solver)
    client = join(shards, solver, WaitPolicy(0.05, warn=said.append))
    client.push(torch.ones(170_000), 1.0)
    client.leave()
    assert len(said) == 1 and "the last pushes have not come" in said[0]


def test_a_learner_that_leaves_a_round_waits_for_its_end_on_the_primary(shm_folder):
    """Learner 0 takes the weights once all others have left; they must include that round."""
    shards = make(shm_folder, REPLICA, solver=ParallelSGD())
    client = join(shards, ParallelSGD(), WaitPolicy(30))
    client.push(torch.ones(170_000), 1.0)
    shard, ended = client._shards[0], []

    def answer() -> None:
        ended.append(shard.members.all())
        for block in range(shard.layout.blocks):
            shard.set_progress(block, 1, 0)

    timer = threading.Timer(0.3, answer)
    timer.start()
    client.leave()
    assert ended == [[]]  # it had left, so no learner waited for it
    timer.join()


def test_shards_that_are_being_made_are_waited_for(shm_folder):
    """Making those of a large model takes longer than the wait for a silent server."""
    (unfinished := shm_folder / ".shard-0.77").touch()
    said: list[str] = []

    def finish() -> None:
        make(shm_folder, PRIMARY, PRIMARY)
        unfinished.unlink()

    threading.Timer(0.3, finish).start()
    join(two(shm_folder), Downpour(), WaitPolicy(0.05, warn=said.append)).leave()
    path = shm_folder / "shard-0"
    assert said == [f"the parameter server has been making {path} for 0.05 s: waiting"]


def test_a_shard_finished_during_the_search_is_found(shm_folder, monkeypatch):
    def glob(*_: object) -> list[Path]:
        make(shm_folder, PRIMARY, PRIMARY)
        return []

    monkeypatch.setattr(Path, "glob", glob)
    join(two(shm_folder), Downpour(), WaitPolicy(0.0)).leave()


def test_shards_that_are_missing_removed_or_not_private_are_refused(shm_folder):
    with pytest.raises(ServerError, match=r"no parameter server has made .*/shard-0 for 0\.1 s"):
        join(two(shm_folder), Downpour(), WaitPolicy(0.1))
    mark_removed(shm_folder)
    with pytest.raises(ServerError, match=r"/shard-0 is gone, in which .*: somebody has removed"):
        join(two(shm_folder), Downpour(), WaitPolicy(60))
    shards = make(shm_folder, PRIMARY)
    shm_folder.chmod(0o777)
    with pytest.raises(ServerError, match="is not private to this user"):
        join(shards, Downpour(), WaitPolicy(1.0))
    shm_folder.chmod(0o700)
    join(shards, Downpour(), WaitPolicy(1.0)).leave()


@pytest.mark.parametrize("how", ["back", "halt"])
def test_pushes_for_an_unreachable_primary_are_bounded(shm_folder, how):
    """They would arrive as one step, computed from weights that have not changed."""
    late = how == "halt"

    def come_back(_: str) -> None:
        if not late:
            client._shards[0].all_added().fill(0)

    policy = WaitPolicy(0.2, warn=come_back, late=lambda _: late)
    client = join(make(shm_folder, REPLICA), Downpour(), policy)
    gradient = torch.ones(170_000)
    for _ in range(MOST + 1):
        assert client.wait_for_others() == 0
        client.push(gradient, 1.0)
    if late:
        with pytest.raises(LateError, match="the server of another node"):
            client.wait_for_others()
    else:
        assert client.wait_for_others() > 0.2, "it has warned"
        assert client.wait_for_others() == 0
    client.leave()


def test_pushes_that_move_a_replica_are_bounded_by_their_counter(shm_folder):
    """One more would overflow into an exchange that was never begun, and sending would stop."""
    solver = ElasticAveraging(0.1)
    shards = make(shm_folder, REPLICA, solver=solver)
    client = join(shards, solver, WaitPolicy(0.1, late=lambda _: True))
    added, weights = client._shards[0].all_added(), torch.ones(170_000)
    added.fill(COUNT - SLOTS)  # as if each learner had just seen the counter
    assert client.wait_for_others() == 0
    for _ in range(SLOTS):
        client.push(weights, 1.0)
    assert set(added.tolist()) == {COUNT}
    with pytest.raises(LateError, match="the server of another node"):
        client.wait_for_others()
    added.fill(0)
    client.leave()


def test_the_solver_s_rows_are_read_for_a_checkpoint(shm_folder):
    solver = Downpour(momentum=0.5)
    shards = replace(make(shm_folder, PRIMARY, REPLICA, solver=solver), job_dir=shm_folder)
    count = shards.layout(0, solver, PRIMARY).count
    shards.snapshot(1).parent.mkdir(parents=True)
    shards.snapshot(1).write_bytes(torch.full((2, 170_000 - count), 3.0).numpy().tobytes())
    client = join(shards, solver, WaitPolicy(0.1))
    client.push(torch.ones(170_000), 0.1)
    rows = torch.empty(1, 170_000)
    client.solver_rows(rows)
    assert rows[0, :count].eq(1).all() and rows[0, count:].eq(3).all()
    client.leave()  # no server sends its pushes to the primary: it waits only 0.1 s


def test_a_checkpoint_waits_for_snapshots_that_answer_its_own_request(tmp_path):
    (tmp_path / contract.server_dir(1)).mkdir(parents=True)
    paths = [tmp_path / contract.snapshot_file(1, shard) for shard in (0, 1)]
    for path in paths:
        write_snapshot(path, [(0, [torch.zeros(4)])], 4)
    answered: list[int] = []

    def answer() -> None:
        for request, path in ((1, paths[0]), (1, paths[1]), (2, paths[1]), (2, paths[0])):
            time.sleep(0.1)
            answered.append(request)
            write_snapshot(path, [(0, [torch.zeros(4)])], 4, request)

    primary = threading.Thread(target=answer)
    primary.start()
    for request in (1, 2):
        assert fresh_snapshots(tmp_path, 1, 2, 60) == paths
        assert answered.count(request) == 2
    primary.join()


def test_replicas_are_refreshed_when_asked_for(shm_folder):
    client = join(make(shm_folder, PRIMARY, REPLICA), Downpour(), WaitPolicy(1))
    with pytest.raises(ServerError, match="another node's parameter server has not answered"):
        client.refresh(0.01)
    server = client._shards[1]  # one object per file and process
    assert server.refresh_wanted == 1
    server.refreshed = 2
    client.refresh(1)
    client.leave()


def test_a_halt_ends_waits_for_other_nodes(shm_folder, tmp_path, monkeypatch):
    looks = itertools.count()  # each look at the clock takes a second
    monkeypatch.setattr(
        waiting, "time", SimpleNamespace(monotonic=looks.__next__, sleep=lambda _: None)
    )
    said: list[str] = []
    policy = WaitPolicy(60, warn=said.append, late=lambda _: True)
    client = join(make(shm_folder, REPLICA), Downpour(), policy)
    with pytest.raises(ServerError, match="has not answered for as long as the halt leaves time"):
        client.refresh(60)
    client.push(torch.ones(170_000), 1.0)
    client.leave()
    assert "have not come to another node's server for as long as the halt" in said[0]
    (tmp_path / "attempts/1").mkdir(parents=True)
    with pytest.raises(ServerError, match="no snapshot of shard 0 .* as long as the halt"):
        fresh_snapshots(tmp_path, 1, 1, 60, lambda _: True)
    assert next(looks) < 30


def test_pushes_of_others_are_counted_where_the_first_shards_are_empty(shm_folder):
    """A small model in many shards: the first has no block, and so no count."""
    shards = make(shm_folder, *5 * [PRIMARY], learners=2)
    here, other = (
        join(shards, Downpour(), WaitPolicy(10), rank=rank, learners=2) for rank in range(2)
    )
    assert not here._shards[0].layout.blocks
    for _ in range(3):
        other.push(torch.ones(170_000), 1.0)
    assert here.pushes_by_others() == 3
    here.push(torch.ones(170_000), 1.0)
    assert here.pushes_by_others() == 3  # its own does not count
    other.leave()
    here.leave()


def fork_learner(folder: Path, staleness: int, pushes: int) -> subprocess.Popen[str]:
    code = (
        "import sys, torch; from pathlib import Path; sys.path[:0] = sys.argv[4:]\n"
        "from test_client import *\n"
        "shards = ShardSet(Path(sys.argv[1]), PARAMETERS, 2, 1)\n"
        "client = join(shards, Downpour(), WaitPolicy(10), rank=1, learners=2,\n"
        "              staleness=int(sys.argv[2]))\n"
        "for n in range(int(sys.argv[3])):\n"
        "    client.wait_for_others()\n"
        "    client.push(torch.ones(170_000), 1.0)\n"
        "    print(client._staleness_bound.pushes, flush=True)\n"
        "sys.stdin.read()"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, str(folder), str(staleness), str(pushes),
         str(SUPPORT), str(Path(__file__).parent)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.slow
def test_staleness_is_bounded_and_the_dead_are_not_waited_for(shm_folder):
    shards = make(shm_folder, PRIMARY, PRIMARY)
    client = join(shards, Downpour(), WaitPolicy(10), learners=2, staleness=2)
    members, gradient = client._shards[0].members, torch.ones(170_000)
    with fork_learner(shm_folder, staleness=2, pushes=4) as other:
        assert other.stdout is not None
        assert [other.stdout.readline() for _ in range(3)] == ["1\n", "2\n", "3\n"]
        assert client.pushes_by_others() == 3
        time.sleep(0.1)
        assert client.pushes_by_others() == 3  # the other learner waits
        client.push_pull(gradient, gradient, 0.0)
        assert other.stdout.readline() == "4\n"
        assert client.pushes_by_others() == 1
        slot = client._shards[0].slot
        assert members.clock(1 - slot) == members.slowest(excluding=slot) == 4
        for _ in range(5):
            client.push(gradient, 0.0)
        assert client.wait_for_others() == 0
        client.push(gradient, 0.0)
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(client.wait_for_others)
            with pytest.raises(TimeoutError):
                waits.result(0.2)
            other.kill()
            assert waits.result(60) > 0
    with fork_learner(shm_folder, staleness=2, pushes=1) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "8\n"  # it begins with the clock of the slowest
        other.kill()
    client.leave()
