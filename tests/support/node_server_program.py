"""Run by test_node_server.py: servers and learners of several nodes. Not a test by itself.

python node_server_program.py SCENARIO FOLDER
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from quadratic import SOLVERS, take_step
from server_nodes import Training, ended, fork, until, wait_for

from dlctl import contract
from learner.system.processes import end_with_parent
from psrv.client import Client
from psrv.server.server import digest
from psrv.shard.shard import Shard
from psrv.solvers.solver import Downpour, ElasticAveraging, ParallelSGD, RoundSolver, Solver
from psrv.transport.base import Greeting, Purpose, RefusedError
from psrv.transport.tcp import dial

FOLDER = Path(sys.argv[2])
ROUNDS = 60
KILLS = 9


def begin(
    solver: Solver | RoundSolver, count: int = 700_000, learners: Sequence[int] = (2, 2),
    shard_nodes: Sequence[int] = (0, 1), *, folder: Path = FOLDER, bounded: bool = False,
) -> Training:  # fmt: skip
    """Start the servers of a training, and write the first snapshots: zeros."""
    training = Training(folder, solver, count, list(shard_nodes), list(learners), bounded)
    for node in range(len(learners)):
        training.serve(node)
    training.begin(torch.zeros(count))
    return training


def weights_on(training: Training, node: int) -> torch.Tensor:
    """Return the weights that a new learner of a node finds."""
    client = training.join(sum(training.learners_per_node[:node]))
    client.refresh(60)
    weights = torch.empty(training.count)
    client.pull(weights)
    client.leave()
    return weights


def draw_to_one(training: Training, name: str, steps: int) -> Callable[[Client], None]:
    """Return what trains so many steps."""

    def work(client: Client) -> None:
        weights = torch.empty(training.count)
        client.pull(weights)
        for number in range(steps):
            take_step(client, weights, name)
            if number % 10 == 9:  # on a busy machine a server may be so late that pushes overshoot
                client.refresh(60)
            time.sleep(0.002)

    return work


def show_ones(training: Training) -> None:
    """Say whether the weights have come to 1, on each node that has a server."""
    for node in sorted(training.servers):
        weights = weights_on(training, node)
        print(f"node {node} at 1:", float((weights - 1).abs().max()) < 0.05)


def solvers(_: str) -> None:
    """Two nodes with two learners each reach the minimum, with every solver."""
    for name in SOLVERS:
        (folder := FOLDER / name).mkdir()
        training = begin(SOLVERS[name], 150_000, folder=folder)
        wait_for(*[training.learn(rank, draw_to_one(training, name, 80)) for rank in range(4)])
        print(name)
        show_ones(training)
        training.end()


def one_each(training: Training, steps: int) -> Callable[[Client], None]:
    """Return what pushes ones so many times: the weights count pushes, exactly."""

    def work(client: Client) -> None:
        gradient, weights = torch.ones(training.count), torch.empty(training.count)
        for _ in range(steps):
            client.push_pull(gradient, weights, 1.0)

    return work


def show_counts(training: Training, of: int = 1) -> None:
    """Say how many pushes each element has had, on each node that has a server."""
    for node in sorted(training.servers):
        counts = {-float(weight) / of for weight in weights_on(training, node).unique()}
        print(f"node {node}:", *sorted(counts))


def play(training: Training, fault: str, learners: list[int], most: int) -> None:
    """Cut connections or kill servers so many times while learners live, and say "enough"."""
    draw = random.Random(7)
    until((training.node(1) / "shard-1").exists, "shards")
    played = 0
    while learners:
        time.sleep(draw.uniform(0.3, 0.6) if fault == "kill" else draw.uniform(0.0, 0.05))
        learners = [child for child in learners if not ended(child)]
        if fault and learners and played < most:
            node = draw.randrange(2)
            played += 1
            if fault == "cut":
                training.cut(node)
            else:
                training.kill(node)
                training.serve(node)
        if played == most:
            (FOLDER / "enough").touch()
    print("faults while learners pushed:", played > 0 or not fault)


def exact(fault: str) -> None:
    """Pushes are counted exactly while servers are killed, or their connections cut.

    A learner is killed in the middle of a push, when its replica passes earlier ones on.
    """
    training = begin(Downpour(), learners=(2, 3))

    def work(client: Client, rank: int) -> None:
        gradient, weights, pushes = torch.ones(training.count), torch.empty(training.count), 0
        while not (FOLDER / "enough").exists() or pushes < 50:
            client.push_pull(gradient, weights, 1.0)
            pushes += 1
        (FOLDER / f"pushes-{rank}").write_text(str(pushes))

    def die(client: Client) -> None:
        one_each(training, 50)(client)
        (FOLDER / "pushes-4").write_text("50")
        Shard.count_push = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
        client.push(torch.ones(training.count), 1.0)

    doomed = training.learn(4, die)
    learners = [training.learn(rank, partial(work, rank=rank)) for rank in range(4)]
    play(training, fault, learners, 3 if fault == "kill" else 20)
    print("one was killed:", os.waitpid(doomed, 0)[1] == signal.SIGKILL)
    pushes = sum(int(path.read_text()) for path in FOLDER.glob("pushes-*"))
    show_counts(training, of=pushes)
    training.end()


def drawn(_: str) -> None:
    """Center and learners of both nodes draw each other; their sum stays."""
    training = begin(ElasticAveraging(0.2), 300_000)

    def work(client: Client, rank: int) -> None:
        mine = torch.full((training.count,), float(rank))
        for _ in range(60):
            client.push_pull(mine, mine, 0.0)
        torch.save(mine, FOLDER / f"{rank}.pt")

    wait_for(*[training.learn(rank, partial(work, rank=rank)) for rank in range(4)])
    center = weights_on(training, 0)
    ends = [torch.load(FOLDER / f"{rank}.pt") for rank in range(4)]
    print("sum:", float((center + sum(ends) - sum(range(4))).abs().max()) < 1e-3)
    training.end()


def rounds(fault: str) -> None:
    """Sums are in rank order, in any order of arrival and after any cut.

    Where the primary is, on node 0 or on node 1, the ranks add one by one; another node adds a sum.
    """
    solver = ParallelSGD(momentum=0.5)
    training = begin(solver)

    def work(client: Client, rank: int) -> None:
        draw, weights = torch.Generator().manual_seed(rank), torch.empty(training.count)
        order = random.Random()
        for _ in range(ROUNDS):
            gradient = torch.randn(training.count, generator=draw)
            time.sleep(order.uniform(0, 0.01))
            client.push_pull(gradient, weights, 0.1)

    learners = [training.learn(rank, partial(work, rank=rank)) for rank in range(4)]
    play(training, fault, learners, {"": 0, "cut": 10, "kill": 2}[fault])
    draws = [torch.Generator().manual_seed(rank) for rank in range(4)]
    on_0, on_1 = ([torch.zeros(training.count), torch.zeros(training.count)] for _ in range(2))
    for _ in range(ROUNDS):
        a, b, c, d = (torch.randn(training.count, generator=draw) for draw in draws)
        solver.step(on_0, (a + b) + (c + d), 4, 0.1)
        solver.step(on_1, (a + b) + c + d, 4, 0.1)
    half = 5 * 65_536  # of 11 blocks
    expected = torch.cat([on_0[0][:half], on_1[0][half:]])
    for node in (0, 1):
        print(f"node {node} has the bits:", torch.equal(weights_on(training, node), expected))
    training.end()


class Sum(ParallelSGD):
    """Its weights count what was added to them."""

    def step(
        self, server: Sequence[torch.Tensor], total: torch.Tensor, count: int, rate: float
    ) -> None:
        server[0].sub_(total)


def left(_: str) -> None:
    """Who leaves another node after its push, without a pull, is in that round all the same."""
    training = begin(Sum(), learners=(1, 1), shard_nodes=[0])
    gradient = torch.ones(training.count)

    def stay(client: Client) -> None:
        client.push(gradient, 1.0)
        (FOLDER / "pushed").touch()
        client.pull(torch.empty(training.count))

    def leave(client: Client) -> None:
        until((FOLDER / "pushed").exists, "the other one")
        client.push(gradient, 1.0)

    wait_for(training.learn(0, stay), training.learn(1, leave))
    show_counts(training)
    training.end()


def lost(name: str) -> None:
    """A node is lost with its learner; its shard moves, and the others continue."""
    training = begin(SOLVERS[name], 500_000, (1, 1, 1), (0, 1, 2))
    work = draw_to_one(training, name, 150)
    learners = [training.learn(rank, work) for rank in range(3)]
    time.sleep(1.5)
    os.kill(learners[1], signal.SIGKILL)
    os.waitpid(learners.pop(1), 0)
    training.kill(1)
    time.sleep(0.5)
    training.lose(1, [0, 2, 2])
    wait_for(*learners)
    show_ones(training)
    training.end()


def moved(_: str) -> None:
    """A shard moves to a node that had seen less of it than another one, which only pulls then."""
    training = begin(Downpour(), 300_000, (1, 1, 1), (0, 1, 2))

    def push(rank: int, value: float) -> None:
        gradient = torch.full((training.count,), value)
        wait_for(training.learn(rank, lambda client: client.push(gradient, 1.0)))

    push(2, 1.0)
    push(0, 10.0)
    training.kill(1)
    training.lose(1, [0, 2, 2])
    until(lambda: "primary of shard 1 now" in training.log(2), "the new primary")
    push(2, 1.0)  # as many pushes as node 0 has seen, but others
    print("the same on both nodes:", torch.equal(*(weights_on(training, n) for n in (0, 2))))
    training.end()


def fenced(_: str) -> None:
    """A node that was given up continues; nothing of what it pushes then comes to the others."""
    training = begin(Downpour(), 700_000, (1, 1, 1), (0, 1, 2))
    wait_for(*[training.learn(rank, one_each(training, 5)) for rank in range(3)])
    show_counts(training)
    cut_off = training.servers.pop(1)
    os.kill(cut_off, signal.SIGSTOP)
    training.lose(1, [0, 2, 2])
    until(lambda: "primary of shard 1 now" in training.log(2), "the new primary")

    def push_on(client: Client) -> None:
        client.push(torch.full((training.count,), 1000.0), 1.0)
        os._exit(0)  # leaving would wait until it is at the primary

    wait_for(training.learn(1, push_on))
    wait_for(*[training.learn(rank, one_each(training, 5)) for rank in (0, 2)])
    os.kill(cut_off, signal.SIGCONT)
    wait_for(cut_off)
    print("it says:", *{line.split(" ", 1)[1] for line in training.log(1).splitlines()
                        if "this node was given up" in line})  # fmt: skip
    show_counts(training)
    training.serve(1)
    wait_for(training.servers.pop(1))
    training.end()


def staleness_bound(slow: str) -> None:
    """With a staleness of 3 nobody is more than so many pushes ahead of a slow one elsewhere."""
    training = begin(Downpour(scale=0.5), 300_000, (1, 1), bounded=True)
    shown = FOLDER / "pushes"
    shown.write_text("0")

    def work(client: Client, rank: int) -> None:
        gradient, ahead = torch.ones(training.count), 0
        (FOLDER / f"joined-{rank}").touch()
        until(lambda: len(list(FOLDER.glob("joined-*"))) == 2, "the other one")
        time.sleep(0.5)  # each knows the other's clock now
        for push in range(60):
            client.wait_for_others()
            if rank == int(slow):
                time.sleep(0.01)
                (FOLDER / "new").write_text(str(push + 1))
                (FOLDER / "new").replace(shown)
            else:
                ahead = max(ahead, push - int(shown.read_text() or 0))
            client.push(gradient, 1.0)
        if rank != int(slow):
            print("ahead by 1 to 3:", 1 <= ahead <= 3, flush=True)

    wait_for(*[training.learn(n, partial(work, rank=n), staleness=3) for n in (0, 1)])
    training.end()


def refused(_: str) -> None:
    """A client of another training is refused with a reason; the log holds it, not the secret."""
    training = Training(FOLDER, Downpour())
    training.serve(0)
    training.begin(torch.zeros(training.count))
    place = FOLDER / "job" / contract.server_file(1, 0)
    until(lambda: (training.node(0) / "shard-1").exists() and place.exists(), "the server")
    port = contract.from_json(contract.ServerPlace, place.read_text()).port
    right = Greeting(1, 1, 0, Purpose.EXCHANGE, digest(training.parameters, ""))
    other = replace(training.parameters, model="another")
    for greeting, secret in [
        (right, b"5ec7e7"),
        (right, b"another"),
        (right._replace(attempt=2), b"5ec7e7"),
        (right._replace(digest=digest(other, "")), b"5ec7e7"),
        (right._replace(to_node=1), b"5ec7e7"),
        (right._replace(node=9), b"5ec7e7"),
    ]:
        try:
            dial("127.0.0.1", port, greeting, secret).close()
            print("let in")
        except RefusedError as error:
            print(error)
    training.lose(1, [0, 0])
    until(lambda: "node 1 was given up" in training.log(0), "the placement")
    try:
        dial("127.0.0.1", port, right, b"5ec7e7")
    except RefusedError as error:
        print(error)
    training.end()
    print("logged:", training.log(0).count("refused 127.0.0.1"), "5ec7e7" in training.log(0))


class Whole(Sum):
    """Checks that all elements of a sum are alike, also where learners of a round were killed."""

    def step(
        self, server: Sequence[torch.Tensor], total: torch.Tensor, count: int, rate: float
    ) -> None:
        assert total.eq(count).all(), "a block was torn, or came twice, or not at all"
        super().step(server, total, count, rate)


def alone(_: str) -> None:
    """All have left, and the last chunk is trained again: nobody else ends the round before."""
    training = begin(Sum(), learners=(1, 1))
    wait_for(*[training.learn(rank, one_each(training, 3)) for rank in (0, 1)])
    for rank in (0, 1):
        wait_for(training.learn(rank, one_each(training, 1)))
    show_counts(training)
    training.end()


def often(_: str) -> None:
    """No push is lost while learners join and leave, as long as none dies."""
    training = begin(Sum(), learners=(1, 2))

    def work(rank: int) -> None:
        draw, client = random.Random(rank), training.join(rank)
        gradient, weights = torch.ones(training.count), torch.empty(training.count)
        for _ in range(60):
            if draw.random() < 0.5:
                client.push_pull(gradient, weights, 1.0)
            else:
                client.push(gradient, 1.0)
            if draw.random() < 0.1:
                client.leave()
                time.sleep(draw.uniform(0, 0.05))
                client = training.join(rank)
        client.leave()

    wait_for(*[fork(f"learner {rank}", partial(work, rank)) for rank in range(3)])
    show_counts(training, of=3 * 60)
    training.end()


def killed(_: str) -> None:
    """Learners of both nodes, and servers, are killed at random: all the others' rounds end."""
    training, draw = begin(Whole()), random.Random(int(os.environ.get("SEED", "3")))

    def work(client: Client, rank: int) -> None:
        gradient, weights = torch.ones(training.count), torch.empty(training.count)
        while not (FOLDER / "enough").exists():
            client.push_pull(gradient, weights, 1.0)
            (FOLDER / f"pushed-{rank}").touch()

    def start(rank: int) -> int:
        return training.learn(rank, partial(work, rank=rank))

    def pushed(ranks: Sequence[int]) -> bool:
        return all((FOLDER / f"pushed-{rank}").exists() for rank in ranks)

    learners = [start(rank) for rank in range(4)]
    until(lambda: pushed(range(4)), "first rounds")
    for number in range(KILLS):
        victims = [2, 3] if number == KILLS // 2 else draw.sample(range(4), draw.choice((1, 2)))
        for rank in victims:
            os.kill(learners[rank], signal.SIGKILL)
            os.waitpid(learners[rank], 0)
            (FOLDER / f"pushed-{rank}").unlink(missing_ok=True)
        if number % 3 == 0:
            node = draw.randrange(2)
            training.kill(node)
            training.serve(node)
        time.sleep(draw.uniform(0.0, 0.1))
        for rank in victims:
            learners[rank] = start(rank)
        if number % 2:
            until(partial(pushed, victims), f"rounds after kill {number}")
    (FOLDER / "enough").touch()
    wait_for(*learners)
    same = torch.equal(*(weights_on(training, node) for node in (0, 1)))
    print("nodes have the same weights:", same)
    training.end()


if __name__ == "__main__":
    end_with_parent()
    torch.set_num_threads(1)
    scenario, _, argument = sys.argv[1].partition(":")
    globals()[scenario](argument)
