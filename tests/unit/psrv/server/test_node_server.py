"""Servers of several nodes, with real processes: each scenario runs in its own process."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from repository import SUPPORT

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
from psrv.transport.base import DisconnectedError, Purpose, UnknownPlaceError, UnreachableError
from psrv.transport.reachability import Reachability

PROGRAM = SUPPORT / "node_server_program.py"


BOTH_AT_1 = "node 0 at 1: True\nnode 1 at 1: True\n"
SOLVER_NAMES = ("downpour", "momentum", "adagrad", "elastic", "parallel", "averaging", "diloco")
EXACT = """\
faults while learners pushed: True
one was killed: True
node 0: 1.0
node 1: 1.0
"""
BITS = """\
faults while learners pushed: True
node 0 has the bits: True
node 1 has the bits: True
"""
FENCED = """\
node 0: 15.0
node 1: 15.0
node 2: 15.0
it says: this node was given up: its server ends
node 0: 25.0
node 2: 25.0
"""
REFUSED = """\
let in
it does not know the secret of this training's attempt (and says it is node 1 of attempt 1)
it belongs to attempt 2, and this is attempt 1
node 1 has another model, or another solver
node 1 wants node 1: this is another one
node 9 wants node 0: this is another one
node 1 was given up
logged: 6 False
"""
LOST = "node 0 at 1: True\nnode 2 at 1: True\n"
AHEAD = "ahead by 1 to 3: True\n"
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("scenario", "output"),
    [
        pytest.param(scenario, output, id=scenario, marks=marks)
        for scenario, output, *marks in [
            ("solvers", "".join(f"{name}\n{BOTH_AT_1}" for name in SOLVER_NAMES), SLOW),
            ("exact:cut", EXACT, SLOW),
            ("exact:kill", EXACT),
            ("drawn", "sum: True\n", SLOW),
            *((f"rounds:{fault}", BITS, SLOW) for fault in ("", "cut", "kill")),
            ("left", "node 0: 2.0\nnode 1: 2.0\n"),
            ("alone", "node 0: 8.0\nnode 1: 8.0\n"),
            ("often", "node 0: 1.0\nnode 1: 1.0\n"),
            ("killed", "nodes have the same weights: True\n", SLOW),
            ("lost:downpour", LOST),
            ("lost:elastic", LOST, SLOW),
            ("lost:parallel", LOST, SLOW),
            ("moved", "the same on both nodes: True\n"),
            ("fenced", FENCED),
            ("staleness_bound:0", AHEAD, SLOW),
            ("staleness_bound:1", AHEAD),
            ("refused", REFUSED),
        ]
    ],
)
def test_a_scenario_of_several_nodes_ends_as_it_must(shm_folder, zygote, scenario, output):
    """Each scenario's docstring in node_server_program.py says what is promised."""
    own = shm_folder / scenario
    own.mkdir()
    done = zygote.run(PROGRAM, scenario, own)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout == output


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


def test_a_server_that_ends_without_an_error_closes_its_port(job):
    job.server.run(lambda: True, lambda _: None)
    assert job.server._listener is not None
    assert job.server._listener._socket.fileno() == -1


def test_an_empty_secret_is_refused(job, tmp_path):
    job.write(server_secret(1), "\n")
    server = NodeServer(job.directory, tmp_path / "node", SETTINGS, job.said.append)
    with pytest.raises(ServerError, match="is empty: the disk was full"):
        server.run(lambda: False, lambda _: None)


def test_a_node_that_was_never_reached_ends_the_server(job, tmp_path, monkeypatch):
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


def test_removed_files_are_logged_once(job, tmp_path):
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


def test_a_new_primary_writes_the_snapshots_that_a_lost_one_owed(job):
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


def test_snapshots_that_can_not_be_written_are_tried_again_soon(job, monkeypatch):
    monkeypatch.setattr("psrv.server.server._SNAPSHOTS_AGAIN_S", 0.0)
    shards = Written([False, True])
    job.server._shards = shards  # type: ignore[assignment]
    job.write(snapshot_request_file(1), "1\n")
    for _ in range(3):
        look(job.server)
    assert shards.requests == [1, 1]


def test_an_error_while_writing_snapshots_ends_the_server(job):
    error = MemoryError()
    job.server._shards = Written([error])  # type: ignore[assignment]
    job.write(snapshot_request_file(1), "1\n")
    look(job.server)
    assert job.server._failures == [error]


def test_an_unreachable_job_directory_is_logged_once(job):
    job.directory.rename(job.directory.with_name("away"))
    for _ in range(3):
        job.server._read_placement()
    job.directory.with_name("away").rename(job.directory)
    job.server._read_placement()
    assert len(job.said) == 1 and "there is no" in job.said[0]


def test_a_former_primary_replaces_no_snapshot(job):
    path = job.directory / "shard-0.rows"
    old, new = [(0, [torch.zeros(8)])], [(0, [torch.ones(8)])]
    assert write_snapshot(path, old, 8, 4, lambda: job.server._is_primary(0))
    job.write(homes_file(1), to_json(Homes(2, [1, 1], [0])))
    assert not write_snapshot(path, new, 8, 5, lambda: job.server._is_primary(0))
    assert request_answered(path) == 4
    assert {each.name for each in job.directory.iterdir() if each.is_file()} == {path.name}


def test_servers_with_other_solvers_have_other_digests():
    parameters = Parameters(8, "float32", rows=1, model="model")
    lines = ["momentum 0.5", "momentum 0.9", "momentum 0.5"]
    first, other, again = (digest(parameters, line) for line in lines)
    assert first == again != other
