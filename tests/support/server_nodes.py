"""Nodes of a training on this machine: servers and learners are forks, each node has a folder.

For programs of one thread (see node_server_program.py). Not a test by itself.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from dlctl import contract
from learner.system.processes import end_with_parent
from psrv.client import Client, join
from psrv.push.snapshots import write_snapshot
from psrv.push.waiting import WaitPolicy
from psrv.server.server import NodeServer, Settings
from psrv.solvers.partition import ShardSet, ranges_of
from psrv.solvers.solver import RoundSolver, Solver

TIME_LIMIT_S = 60.0


def fork(name: str, work: Callable[[], None]) -> int:
    """Run a function in a child process; what it raises goes to standard error."""
    child = os.fork()
    if child == 0:
        try:
            end_with_parent()
            torch.set_num_threads(1)  # two threads that were first would make torch's pool twice
            work()
            os._exit(0)
        except BaseException:
            print(f"{name}: {traceback.format_exc()}", file=sys.stderr, flush=True)
        finally:
            os._exit(1)
    return child


@dataclass
class Training:
    """What the supervisor and learner 0 would write; `folder` has the job directory and nodes."""

    folder: Path
    solver: Solver | RoundSolver
    count: int = 300_000
    shard_nodes: list[int] = field(default_factory=lambda: [0, 1])
    learners_per_node: list[int] = field(default_factory=lambda: [1, 1])
    bounded: bool = False
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        self.job_dir = self.folder / "job"
        self.parameters = contract.Parameters(
            count=self.count, dtype="float32", rows=1 + self.solver.rows, model="quadratic"
        )
        self.servers: dict[int, int] = {}
        self.placement = contract.Homes(generation=1, shard_nodes=list(self.shard_nodes))
        secret = self.job_dir / contract.server_secret(1)
        secret.parent.mkdir(parents=True)
        secret.write_text("5ec7e7")
        self.write_homes()

    def write_homes(self) -> None:
        contract.write_whole(
            self.job_dir / contract.homes_file(1), contract.to_json(self.placement)
        )

    def begin(self, weights: torch.Tensor) -> None:
        """Be learner 0: write the first snapshots and say what there is."""
        shards = len(self.shard_nodes)
        for shard, (start, stop) in enumerate(ranges_of(self.parameters, shards)):
            rows = [weights[start:stop]] + [torch.zeros(stop - start)] * self.solver.rows
            path = self.job_dir / contract.snapshot_file(1, shard)
            write_snapshot(path, [(0, rows)], stop - start)
        path = self.job_dir / contract.parameters_file(1)
        contract.write_whole(path, contract.to_json(self.parameters))

    def node(self, node: int) -> Path:
        return self.folder / f"node-{node}"

    def settings(self, node: int) -> Settings:
        return Settings(
            attempt=1, node=node, learners_per_node=self.learners_per_node, solver=self.solver,
            host="127.0.0.1", timeout_s=self.timeout_s, snapshot_every_s=600, bounded=self.bounded,
        )  # fmt: skip

    def serve(self, node: int) -> None:
        """Start a node's server."""

        def work() -> None:
            ended: list[int] = []
            signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
            log = (self.folder / f"server-{node}.log").open("a", buffering=1)
            server = NodeServer(
                self.job_dir, self.node(node), self.settings(node),
                lambda line: print(f"{time.monotonic():.3f} {line}", file=log),
            )  # fmt: skip
            signal.signal(signal.SIGUSR1, lambda *_: cut(server))
            server.run(lambda: bool(ended), lambda doing: None)

        self.node(node).mkdir(exist_ok=True)
        self.servers[node] = fork(f"server {node}", work)

    def cut(self, node: int) -> None:
        os.kill(self.servers[node], signal.SIGUSR1)

    def lose(self, node: int, placement: list[int]) -> None:
        """Give a node up, as the supervisor would."""
        lost = [*self.placement.lost_nodes, node]
        self.placement = contract.Homes(self.placement.generation + 1, placement, lost)
        self.write_homes()

    def kill(self, node: int) -> None:
        os.kill(self.servers[node], signal.SIGKILL)
        os.waitpid(self.servers.pop(node), 0)

    def join(self, rank: int, timeout_s: float = TIME_LIMIT_S, **options: object) -> Client:
        learners = sum(self.learners_per_node)
        folder = self.node(self.node_of(rank))
        shards = ShardSet(folder, self.parameters, len(self.shard_nodes), 1)
        policy = WaitPolicy(timeout_s)
        return join(shards, self.solver, policy, rank=rank, learners=learners, **options)  # type: ignore[arg-type]

    def node_of(self, rank: int) -> int:
        node = 0
        while rank >= self.learners_per_node[node]:
            rank -= self.learners_per_node[node]
            node += 1
        return node

    def learn(self, rank: int, work: Callable[[Client], None], **options: object) -> int:
        """Start a learner that does so, and leaves."""

        def learner() -> None:
            client = self.join(rank, **options)
            work(client)
            client.leave()

        return fork(f"learner {rank}", learner)

    def log(self, node: int) -> str:
        return (self.folder / f"server-{node}.log").read_text()

    def end(self) -> None:
        """End the servers, as the supervisor would."""
        for server in self.servers.values():
            os.kill(server, signal.SIGTERM)
        for node, server in self.servers.items():
            if (status := os.waitpid(server, 0)[1]) != 0:
                print(f"server {node} ended with {status}", file=sys.stderr)
        self.servers.clear()


def cut(server: NodeServer) -> None:
    """End all connections, wherever they are."""
    shards = server._shards
    if shards is not None:
        ends = [end._connection for link in shards._links for end in link._ends]
        for connection in [*ends, *list(shards.connections._connections)]:
            if connection is not None:
                connection.close()


def wait_for(*children: int) -> None:
    """Wait for learners, which must end well."""
    for child in children:
        if (status := os.waitpid(child, 0)[1]) != 0:
            print(f"a learner ended with {status}", file=sys.stderr)


def ended(child: int) -> bool:
    """Return whether a learner has ended, which must be well."""
    pid, status = os.waitpid(child, os.WNOHANG)
    if pid and status:
        print(f"a learner ended with {status}", file=sys.stderr)
    return bool(pid)


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for something."""
    deadline = time.monotonic() + TIME_LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.01)
