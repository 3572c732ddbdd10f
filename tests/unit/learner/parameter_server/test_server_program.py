"""The program of a node's server: how it starts, ends and reports errors."""

from __future__ import annotations

import ipaddress
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from server_job import make_served_job
from zygote import Forked

from dlctl import contract
from dlctl.contract import State
from learner.agent.preflight import bound_address
from learner.job.context import TAKES_OVER
from learner.job.directives import ENDED, GIVEN_UP, Outside
from learner.parameter_server import server as program
from learner.system.segments import server_folder
from learner.system.signals import HaltFlag
from psrv.push.snapshots import request_answered, write_snapshot
from psrv.shard.format import PRIMARY
from psrv.shard.shard import Shard
from psrv.solvers.partition import layout_of
from psrv.solvers.solver import ParallelSGD

COUNT = 100_000


class Server:
    """The program on a job of one node."""

    process: Forked

    def __init__(self, job):
        self.job = job
        self.log = job.directory / contract.server_log(1, 0)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        homes = contract.Homes(generation=1, shard_nodes=[0])
        contract.write_whole(job.directory / contract.homes_file(1), contract.to_json(homes))

    def start(self, *more):
        argv = ["-m", "learner.parameter_server.server", self.job.directory, "1", "0", *more]
        with self.log.open("a") as log:
            self.process = self.job.zygote.start(*argv, env=os.environ, stdout=log)

    def tell(self, count=COUNT, rows=1):
        """Write the parameters and the snapshot, as learner 0 would."""
        if count == COUNT:
            path = self.job.directory / contract.snapshot_file(1, 0)
            write_snapshot(path, [(0, [torch.arange(float(count))])], count)
        parameters = contract.Parameters(count, "float32", rows, "model", [])
        path = self.job.directory / contract.parameters_file(1)
        contract.write_whole(path, contract.to_json(parameters))

    @property
    def folder(self):
        return server_folder(self.job.plan.training_id, 1, self.job.directory)

    def status(self):
        path = self.job.directory / contract.status_file(1, "server", 0)
        found = contract.read_record(contract.Status, path)
        assert found is not None
        return found


@pytest.fixture
def server(tmp_path, zygote):
    """A server that is not started yet."""
    settings = contract.ParameterServer("parallel_sgd", [0], timeout_s=60)
    server = Server(make_served_job(tmp_path, zygote, "", 2, settings))
    yield server
    server.process.kill()
    server.process.wait()
    server.job.clean()


def shard_of(server):
    parameters = contract.Parameters(COUNT, "float32", 1, "model", [])
    layout = layout_of(parameters, 1, 0, ParallelSGD(), PRIMARY)
    return Shard(server.folder / "shard-0", layout, 1)


@pytest.mark.slow
def test_a_server_of_one_node_from_its_begin_to_its_end(server, wait_until):
    server.start()
    server.tell()
    path = server.folder / "shard-0"
    wait_until(path.exists, what="the shard")
    shard = shard_of(server)
    assert torch.equal(shard.rows[0], torch.arange(float(COUNT)))
    assert shard.expected == 2
    place = contract.read_record(
        contract.ServerPlace, server.job.directory / contract.server_file(1, 0)
    )
    assert place is not None and (place.port, place.pid) == (0, server.process.pid)
    sockets = [str(fd.readlink()) for fd in Path(f"/proc/{place.pid}/fd").iterdir()]
    assert not any(name.startswith("socket:") for name in sockets)  # nothing listens
    wait_until(lambda: server.status().reason == "serves", what="its status")

    shard.rows[0].fill_(7)
    server.process.kill()
    server.process.wait()
    server.start(TAKES_OVER)
    request = server.job.directory / contract.snapshot_request_file(1)
    request.write_text("3\n")
    rows = server.job.directory / contract.snapshot_file(1, 0)
    wait_until(lambda: request_answered(rows) == 3, what="a snapshot of what it has taken over")
    found = torch.frombuffer(bytearray(rows.read_bytes()[: 4 * COUNT]), dtype=torch.float32)
    assert found.eq(7).all()

    shard.members.enter(shard.slot, 1)  # like a learner of this node
    server.process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        server.process.wait(0.5)
    assert path.exists()
    shard.close()
    assert server.process.wait(60) == 0, server.log.read_text()
    assert not server.folder.exists()
    assert server.status().state is contract.State.COMPLETED


def test_a_server_survives_a_full_log_disk(server, wait_until):
    """Its log lines are lost, but the learners' pushes are not."""
    server.tell()
    server.log = Path("/dev/full")
    server.start()
    request = server.job.directory / contract.snapshot_request_file(1)
    rows = server.job.directory / contract.snapshot_file(1, 0)
    for number in (3, 4):  # it logs each of them
        request.write_text(f"{number}\n")
        wait_until(lambda n=number: request_answered(rows) == n, what="a snapshot")
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0


class World:
    """What a server knows of the other processes: a fake learner.job.directives.Outside."""

    told = left = ""
    supervisor_lives = True
    learners = False

    def expelled(self):
        return self.told

    def abandoned(self):
        return self.left


@pytest.mark.parametrize(
    ("found", "route", "interfaces", "bound"),
    [
        (["10.0.0.7"], "192.168.0.7", [], "n7"),
        # From Debian's /etc/hosts; other nodes can't reach it.
        (["127.0.1.1"], "192.168.0.7", [], "192.168.0.7"),
        (["127.0.1.1", "10.0.0.7"], "192.168.0.7", [], "10.0.0.7"),
        (["::1", "fd00::7%eth0"], "192.168.0.7", [], "fd00::7%eth0"),
        # The same, and no route out of the network.
        (["127.0.1.1"], None, ["10.0.0.7", "10.1.0.7"], "10.0.0.7"),
        (["127.0.1.1"], None, [], "n7"),
    ],
)
def test_a_server_is_bound_where_other_nodes_reach_it(monkeypatch, found, route, interfaces, bound):
    answer = [(socket.AF_INET, 0, 0, "", (address, 0)) for address in found]
    have = [(f"eth{n}", ipaddress.ip_address(each)) for n, each in enumerate(interfaces)]
    monkeypatch.setattr("learner.agent.preflight.own_address", lambda plan: "n7")
    monkeypatch.setattr("learner.agent.preflight._route_address", lambda: route)
    monkeypatch.setattr("learner.agent.preflight.own_addresses", lambda: have)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)
    nodes = SimpleNamespace(resources=SimpleNamespace(nodes=2), parameter_server=None)
    assert bound_address(nodes) == bound


def test_a_signal_does_not_end_a_server_with_learners(monkeypatch):
    """A learner that is about to be restarted finds the memory unchanged."""
    monkeypatch.setattr(program, "_ASK_OUTSIDE_EVERY_S", -1.0)
    world, signals = World(), HaltFlag()
    stopped = program._Stopped(world, signals, lambda: world.learners)
    signals.received.append(signal.SIGTERM)
    assert not stopped()
    world.supervisor_lives, world.learners = False, True
    assert not stopped()
    world.learners = False
    assert stopped()
    world.supervisor_lives, world.told = True, "the training has ended"
    assert stopped()


def test_a_supervisor_lives_while_its_heartbeat_is_fresh(tmp_path, monkeypatch):
    heart = tmp_path / contract.status_file(1, "supervisor", 0)
    outside, now = Outside(tmp_path, 1, 60.0), time.monotonic()
    assert not outside.abandoned() and not outside.supervisor_lives
    heart.parent.mkdir(parents=True)
    heart.touch()
    lives = []
    for look in range(48):
        now += 0.5
        monkeypatch.setattr("learner.job.directives.time.monotonic", lambda at=now: at)
        if look == 20:
            os.utime(heart, ns=(0, heart.stat().st_mtime_ns + 1))
        assert not outside.abandoned()
        lives.append(outside.supervisor_lives)
    assert lives == [True] * 44 + [False] * 4


@pytest.mark.parametrize(
    ("told", "state"),
    [
        (GIVEN_UP, None),
        ("", None),
        ("a later attempt has taken over", State.CANCELLED),
        (ENDED, State.COMPLETED),
    ],
)
def test_a_server_reports_why_it_ended_unless_its_node_was_given_up(
    tmp_path, monkeypatch, told, state
):
    settings = contract.ParameterServer("parallel_sgd", [0])
    job = make_served_job(tmp_path, None, "", 2, settings)

    class Node:
        lost = not told
        has_learners = staticmethod(lambda: False)

        def __init__(self, *_):
            pass

        def run(self, stopped, beat):
            beat("serves")
            assert stopped() == bool(told)

    monkeypatch.setattr(World, "told", told)
    monkeypatch.setattr(program, "Outside", lambda *_, **__: World())
    monkeypatch.setattr(program, "NodeServer", Node)
    threads = torch.get_num_threads()
    assert program._run(job.plan, tmp_path, 1, 0, False, HaltFlag()) == 0
    torch.set_num_threads(threads)
    path = tmp_path / contract.status_file(1, "server", 0)
    seen = contract.read_record(contract.Status, path)
    assert seen is not None and (seen.state if seen.state.final else None) is state
    if state is State.CANCELLED:
        assert seen.reason == told


@pytest.mark.first("100000-2*")
@pytest.mark.parametrize(
    ("count", "rows", "said"),
    [
        (10**13, 1, r"can't hold the shards of the parameter server: "
                    r"76,\d{3},\d{3} MiB are needed, [\d,]+ MiB are free"),
        (COUNT, 2, "learner 0 has snapshots of 2 rows, and this server's solver keeps 1"),
    ],
)  # fmt: skip
def test_errors_that_no_restart_can_fix_are_reported_before_training(server, count, rows, said):
    server.start()
    server.tell(count, rows)
    assert server.process.wait(60) == 3
    line, hint = server.log.read_text().splitlines()[-2:]
    assert line.startswith("[server 0 on ") and re.search(said, line), line
    assert "HINT: " in hint
    status = server.status()
    assert status.state is contract.State.FAILED and status.exit_code == 3
    assert re.search(said, status.reason)


def test_the_tightest_memory_limit_counts(tmp_path, monkeypatch):
    settings = contract.ParameterServer("parallel_sgd", [0])
    job = make_served_job(tmp_path, None, "", 2, settings)
    monkeypatch.setattr(program, "memory_left", lambda: {"node": 50, "the job's cgroup": 30})
    made = program._settings(job.plan, job.directory, 1, 0)
    assert made.memory_left() == 30
    monkeypatch.setattr(program, "memory_left", dict)
    assert made.memory_left() is None
