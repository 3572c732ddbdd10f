"""Servers of several nodes, with real processes: each scenario runs in its own process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from repository import SUPPORT
from zygote import Zygote

from dlctl.contract import (
    Homes,
    Parameters,
    homes_file,
    server_secret,
    snapshot_request_file,
    to_json,
    write_whole,
)
from psrv.errors import ServerError
from psrv.push.snapshots import request_answered, write_snapshot
from psrv.server.server import NodeServer, Settings, digest
from psrv.shard.private_folder import was_removed
from psrv.solvers.solver import Downpour
from psrv.transport.base import (
    DisconnectedError,
    Purpose,
    UnknownPlaceError,
    UnreachableError,
)
from psrv.transport.reachability import Reachability

PROGRAM = SUPPORT / "node_server_program.py"
REJOINING = SUPPORT / "rejoining_program.py"
Play = Callable[..., str]


@pytest.fixture
def play(shm_folder: Path, zygote: Zygote) -> Play:
    """Runs a scenario of a program; returns its output."""

    def run(scenario: str, program: Path = PROGRAM) -> str:
        own = shm_folder / scenario
        own.mkdir()
        done = zygote.run(program, scenario, own)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        return done.stdout

    return run


@pytest.mark.slow
def test_learners_of_two_nodes_reach_the_minimum_with_every_solver(play: Play) -> None:
    names = ("downpour", "momentum", "adagrad", "elastic", "parallel", "averaging", "diloco")
    both = "node 0 at 1: True\nnode 1 at 1: True\n"
    assert play("solvers") == "".join(f"{name}\n{both}" for name in names)


@pytest.mark.first("kill")
@pytest.mark.parametrize("fault", ["cut", "kill"])
def test_no_push_is_lost_or_counted_twice(play: Play, fault: str) -> None:
    faults = "faults while learners pushed: True\none was killed: True\n"
    assert play(f"exact:{fault}") == f"{faults}node 0: 1.0\nnode 1: 1.0\n"


@pytest.mark.slow
def test_what_center_and_learners_draw_from_each_other_is_not_lost(play: Play) -> None:
    assert play("drawn") == "sum: True\n"


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["", "cut", "kill"])
def test_rounds_have_the_bits_of_sums_in_rank_order(play: Play, fault: str) -> None:
    assert play(f"rounds:{fault}") == (
        "faults while learners pushed: True\nnode 0 has the bits: True\nnode 1 has the bits: True\n"
    )


def test_a_push_counts_in_its_round_after_its_learner_left(play: Play) -> None:
    assert play("left") == "node 0: 2.0\nnode 1: 2.0\n"


def test_a_learner_that_rejoins_an_empty_training_is_in_the_next_round(play: Play) -> None:
    """It once waited forever for a round without members, and kept the last chunk."""
    assert play("alone", REJOINING) == "node 0: 8.0\nnode 1: 8.0\n"


def test_learners_that_join_and_leave_lose_no_push_in_rounds(play: Play) -> None:
    assert play("often", REJOINING) == "node 0: 1.0\nnode 1: 1.0\n"


@pytest.mark.slow
def test_rounds_end_whole_while_learners_and_servers_are_killed(play: Play) -> None:
    assert play("killed", REJOINING) == "nodes have the same weights: True\n"


@pytest.mark.first("downpour")
@pytest.mark.parametrize("solver", ["downpour", "elastic", "parallel"])
def test_a_lost_node_s_shard_moves_to_another_node(play: Play, solver: str) -> None:
    assert play(f"lost:{solver}") == "node 0 at 1: True\nnode 2 at 1: True\n"


def test_a_replica_takes_a_new_primary_s_weights_despite_equal_push_counts(play: Play) -> None:
    """Otherwise a learner that only pulls would validate, or save, outdated weights."""
    assert play("moved") == "the same on both nodes: True\n"


def test_a_node_that_was_given_up_is_refused(play: Play) -> None:
    assert play("fenced") == (
        "node 0: 15.0\nnode 1: 15.0\nnode 2: 15.0\n"
        "it says: this node was given up: its server ends\n"
        "node 0: 25.0\nnode 2: 25.0\n"
    )


@pytest.mark.first("1")
@pytest.mark.parametrize("slow", [0, 1])
def test_learners_wait_for_a_slow_one_on_another_node(play: Play, slow: int) -> None:
    """Node 0 is the primary of the first shard, which has all clocks."""
    assert play(f"staleness_bound:{slow}") == "ahead by 1 to 3: True\n"


def test_peers_without_the_secret_or_of_another_training_are_refused(play: Play) -> None:
    assert play("refused").splitlines() == [
        "let in",
        "it does not know the secret of this training's attempt "
        "(and says it is node 1 of attempt 1)",
        "it belongs to attempt 2, and this is attempt 1",
        "node 1 has another model, or another solver",
        "node 1 wants node 1: this is another one",
        "node 9 wants node 0: this is another one",
        "node 1 was given up",
        "logged: 6 False",
    ]


SETTINGS = Settings(1, 0, [1, 1], Downpour(), "127.0.0.1")
HOMES = Homes(1, [0, 1])


class Job:
    """The server of node 0, in this process; no other server runs."""

    def __init__(self, folder: Path) -> None:
        self.directory = folder / "job"
        self.said: list[str] = []
        self.write(homes_file(1), to_json(HOMES))
        self.server = NodeServer(self.directory, folder / "node", SETTINGS, self.said.append)
        self.write(server_secret(1), "secret\n")

    def write(self, name: str, text: str) -> None:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_a_server_that_ends_without_an_error_closes_its_port(job: Job) -> None:
    job.server.run(lambda: True, lambda _: None)
    assert job.server._listener is not None
    assert job.server._listener._socket.fileno() == -1


def test_an_empty_secret_is_refused(job: Job, tmp_path: Path) -> None:
    job.write(server_secret(1), "\n")
    server = NodeServer(job.directory, tmp_path / "node", SETTINGS, job.said.append)
    with pytest.raises(ServerError, match="is empty: the disk was full"):
        server.run(lambda: False, lambda _: None)


def test_a_node_that_was_never_reached_ends_the_server(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a firewall each node's learners would train alone to the end, unnoticed."""
    now = 0.0

    def dial(*_: object) -> object:
        if silent:
            raise silent
        if walled:
            raise UnreachableError("no server answers at n1:4711: Connection timed out")
        return object()

    monkeypatch.setattr("psrv.server.server.dial", dial)

    def tries(server: NodeServer) -> str:
        with pytest.raises(ServerError) as caught:
            server._dial(1, Purpose.CLOCKS)
        return "waits" if isinstance(caught.value, DisconnectedError) else caught.value.message

    def begin() -> NodeServer:
        server = NodeServer(job.directory, tmp_path / "node", SETTINGS, job.said.append)
        server._find = lambda node: ("n1", 4711)  # type: ignore[method-assign]
        server._reachability = Reachability(30.0, lambda: now)
        return server

    silent: ServerError | None = None
    walled, server = True, begin()
    assert tries(server) == "waits"
    now = 31.0
    assert tries(server) == (
        "the server of node 1 was never reached, for 30 s: no server answers at n1:4711: "
        "Connection timed out"
    )
    server, walled = begin(), False
    server._dial(1, Purpose.CLOCKS)
    walled, now = True, 100.0
    assert [tries(server), tries(server)] == ["waits", "waits"]
    now = 200.0
    assert tries(server) == "waits"  # the node is unreachable for a while
    server, silent = begin(), DisconnectedError("the server at n1:4711 went away: timed out")
    assert tries(server) == "waits"  # it is making its shards, and its backlog is full
    silent = None
    assert tries(server) == "waits"
    now = 240.0
    assert tries(server) == "waits"
    server, silent = begin(), UnknownPlaceError("the server of node 1 has not said where it is")
    assert tries(server) == "waits"
    silent = None
    assert tries(server) == "waits"
    now = 280.0
    assert "was never reached" in tries(server)
    (tmp_path / "node").mkdir()
    (tmp_path / "node/shard-0").touch()
    server = begin()
    assert tries(server) == "waits"
    now = 320.0
    assert tries(server) == "waits"  # the previous server may have reached it


def test_removed_files_are_logged_once(job: Job, tmp_path: Path) -> None:
    server = NodeServer(job.directory, tmp_path / "node", SETTINGS, job.said.append)
    server._watch_files()
    server._files = SimpleNamespace(exist=lambda: False)  # type: ignore[assignment]
    server._watch_files()
    server._watch_files()
    assert [f"somebody has removed {tmp_path}/node: " in line for line in job.said] == [True]
    assert was_removed(tmp_path / "node")  # a learner that restarts there sees it at once


class Written:
    """Shards that are told to write snapshots."""

    def __init__(self, answers: list[object]) -> None:
        self.answers = answers
        self.requests: list[int] = []

    def apply_placement(self, placement: Homes) -> None:
        pass

    def write_snapshots(self, request: int, *_: object) -> object:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


def look(server: NodeServer) -> None:
    """Look for requests, and wait until they are answered."""
    server._take_snapshots(lambda: False)
    if server._snapshots is not None:
        server._snapshots.join()


def test_a_new_primary_writes_the_snapshots_that_a_lost_one_owed(job: Job) -> None:
    shards = Written([True, True])
    server = job.server
    server._shards = shards  # type: ignore[assignment]
    job.write(snapshot_request_file(1), "3\n")
    for _ in range(2):
        look(server)
        server._read_placement()
    assert shards.requests == [3]
    job.write(homes_file(1), to_json(Homes(2, [0, 0], [1])))
    server._read_placement()
    for _ in range(2):
        look(server)
        server._read_placement()
    assert shards.requests == [3, 3]


def test_snapshots_that_can_not_be_written_are_tried_again_soon(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psrv.server.server._SNAPSHOTS_AGAIN_S", 0.0)
    shards = Written([False, True])
    job.server._shards = shards  # type: ignore[assignment]
    job.write(snapshot_request_file(1), "1\n")
    for _ in range(3):
        look(job.server)
    assert shards.requests == [1, 1]


def test_an_error_while_writing_snapshots_ends_the_server(job: Job) -> None:
    error = MemoryError()
    job.server._shards = Written([error])  # type: ignore[assignment]
    job.write(snapshot_request_file(1), "1\n")
    look(job.server)
    assert job.server._failures == [error]


def test_an_unreachable_job_directory_is_logged_once(job: Job) -> None:
    job.directory.rename(job.directory.with_name("away"))
    for _ in range(3):
        job.server._read_placement()
    job.directory.with_name("away").rename(job.directory)
    job.server._read_placement()
    assert len(job.said) == 1 and "there is no" in job.said[0]


def test_a_former_primary_replaces_no_snapshot(job: Job) -> None:
    path = job.directory / "shard-0.rows"
    old, new = [(0, [torch.zeros(8)])], [(0, [torch.ones(8)])]
    assert write_snapshot(path, old, 8, 4, lambda: job.server._is_primary(0))
    job.write(homes_file(1), to_json(Homes(2, [1, 1], [0])))
    assert not write_snapshot(path, new, 8, 5, lambda: job.server._is_primary(0))
    assert request_answered(path) == 4
    assert {each.name for each in job.directory.iterdir() if each.is_file()} == {path.name}


def test_servers_with_other_solvers_have_other_digests() -> None:
    parameters = Parameters(8, "float32", rows=1, model="model")
    lines = ["momentum 0.5", "momentum 0.9", "momentum 0.5"]
    first, other, again = (digest(parameters, line) for line in lines)
    assert first == again != other
