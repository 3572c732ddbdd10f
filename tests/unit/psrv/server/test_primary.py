"""The home of a shard, for other nodes: no total is taken in twice, nobody waited for in vain."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from quadratic import SOLVERS

from dlctl.contract import Homes, Parameters, attempt_dir, snapshot_file
from psrv.errors import ServerError
from psrv.push.snapshots import write_snapshot
from psrv.server import connections, queues
from psrv.server.connections import Serving
from psrv.server.forwarder import AtOnceRelay, RoundsRelay
from psrv.server.outbox import Window
from psrv.server.primary import Home
from psrv.server.queues import Queues
from psrv.server.shard_files import OwnShards
from psrv.server.shards import NodeShards
from psrv.shard.format import NEVER, ShardLayout, create_shard
from psrv.shard.private_folder import make_own_folder, tell_removed, was_removed
from psrv.shard.shard import ThreadedShard
from psrv.solvers.solver import Downpour, ParallelSGD, RoundSolver, Solver
from psrv.transport.base import DisconnectedError, Frame, Greeting, Kind, Purpose, RefusedError

COUNT, NODES = 1024, 3
LAYOUT = ShardLayout(COUNT, (torch.float32,), "model")
IN_ROUNDS = ShardLayout(COUNT, (torch.float32, torch.float32), "model")
Wait = Callable[..., Any]


@pytest.fixture
def path(shm_folder: Path) -> Path:
    return shm_folder / "shard-0"


@pytest.fixture
def home(path: Path) -> Home:
    create_shard(path, LAYOUT, 1)
    return open_home(path)


def open_home(path: Path) -> Home:
    return Home(0, ThreadedShard(path, LAYOUT, 1), Downpour(), NODES, Queues(Downpour()))


def total(number: int) -> Frame:
    return Frame(Kind.TOTAL, 0, 0, number, 0, pushes=1, rate=1.0, size=4 * COUNT)


def merge(home: Home, node: int, number: int) -> float:
    into = torch.empty(COUNT)
    home.merge(node, total(number), range(1), [torch.ones(COUNT)], [into])
    return float(into[0])


def test_a_total_that_is_sent_again_is_not_taken_in_again_whatever_came_between(
    home: Home, path: Path
) -> None:
    assert merge(home, 1, 11) == -1
    home._merged.note(1, 0, 0)  # as if killed at once, before any note of it
    home.shard.close()
    home = open_home(path)
    assert merge(home, 2, 22) == -2
    assert merge(home, 1, 11) == -2
    assert merge(home, 2, 22) == -2
    assert merge(home, 2, 11) == -3  # another node's number is its own
    home.shard.close()


class Played:
    """A connection over which comes what is put into it, even after its end."""

    def __init__(self) -> None:
        self.frames: queue.Queue[Frame | None] = queue.Queue()
        self.answers: list[Frame] = []

    def receive(self, payload: memoryview) -> Frame:
        if (frame := self.frames.get()) is None:
            raise DisconnectedError("it ended")
        if frame.size:
            torch.frombuffer(payload, dtype=torch.float32).fill_(1)
        return frame

    def send(self, frame: Frame, payload: memoryview | None = None) -> None:
        self.answers.append(frame)

    def readable(self, timeout_s: float) -> bool:
        return not self.frames.empty()

    def close(self) -> None:
        self.frames.put(None)


def test_a_new_connection_waits_for_the_end_of_the_one_before_it(
    home: Home, wait_until: Wait
) -> None:
    served = Serving([home], torch.float32, COUNT, in_rounds=False)
    ends = [Played(), Played()]
    closed = threading.Event()
    old, new = ends
    old.close = closed.set  # type: ignore[method-assign]
    new.frames.put(total(11))
    new.frames.put(total(12))
    threads = [
        threading.Thread(target=served.serve, args=(Greeting(1, 1, 0, Purpose.EXCHANGE, 5), end))
        for end in ends
    ]
    for thread, end in zip(threads, ends, strict=True):
        thread.start()
        wait_until(lambda end=end: end in served._connections, 10)
    closed.wait(1)
    old.frames.put(total(11))  # it was received already, but comes late
    old.frames.put(None)
    threads[0].join(10)
    wait_until(lambda: len(new.answers) == 2, 10)
    new.close()
    threads[1].join(10)
    assert home.shard.rows[0].eq(-2).all() and closed.is_set()
    home.shard.close()


@pytest.fixture
def waiting(path: Path) -> Iterator[Home]:
    """A home of rounds that waits for the learner of node 2, of three nodes with one each."""
    create_shard(path, IN_ROUNDS, 1, learners=3)
    shard = ThreadedShard(path, IN_ROUNDS, 1)
    home = Home(0, shard, ParallelSGD(), NODES, None)
    shard.members.enter(shard.slot, 0b010)
    home.note_clock(0, Frame(Kind.CLOCK, 0, mask=0b001))
    assert not home.begun()
    yield home
    shard.close()


def test_rounds_that_all_were_there_for_begin_without_a_node_that_is_lost_then(
    waiting: Home,
) -> None:
    served = Serving([waiting], torch.float32, COUNT, in_rounds=True)
    waiting.note_clock(2, Frame(Kind.CLOCK, 0, mask=0b100))
    assert waiting.begun()
    served.give_up([2], 2)
    assert waiting.begun()
    with pytest.raises(RefusedError, match="node 2 was given up"):
        waiting.note_clock(2, Frame(Kind.CLOCK, 0, mask=0b100))


def test_learners_of_a_node_that_is_lost_before_are_not_waited_for(waiting: Home) -> None:
    served = Serving([waiting], torch.float32, COUNT, in_rounds=True)
    served.give_up([2], 2)
    assert waiting.begun()


def test_a_home_that_comes_after_a_connection_is_served_in_rounds(
    waiting: Home, wait_until: Wait
) -> None:
    served = Serving([], torch.float32, COUNT, in_rounds=True)
    end = Played()
    greeting = Greeting(1, 2, 0, Purpose.EXCHANGE, 5)
    thread = threading.Thread(target=served.serve, args=(greeting, end))
    thread.start()
    wait_until(lambda: end in served._connections, 10)
    served.add(waiting)
    waiting.note_clock(2, Frame(Kind.CLOCK, 0, mask=0b100))
    assert waiting.begun()
    waiting.shard.members.pause(waiting.shard.slot)
    waiting.pause(0)
    end.frames.put(total(0)._replace(mask=0b100))
    wait_until(lambda: end.answers, 10)
    assert end.answers[0].number == 1 and waiting.shard.rows[0].eq(-1).all()
    end.close()
    thread.join(10)


class Sum(ParallelSGD):
    """Adds up what comes."""

    def step(
        self, server: Sequence[torch.Tensor], total: torch.Tensor, count: int, rate: float
    ) -> None:
        server[0].add_(total)


def open_moved(path: Path) -> Home:
    return Home(0, ThreadedShard(path, IN_ROUNDS, 1), Sum(), NODES, None)


@pytest.fixture
def moved(path: Path) -> Iterator[Home]:
    """A home that was made of a replica with three rounds behind it: node 1 was lost."""
    create_shard(path, IN_ROUNDS, 1, had=[3])
    home = open_moved(path)
    yield home
    home.shard.close()


def clock(home: Home, node: int, ranks: int) -> None:
    home.note_clock(node, Frame(Kind.CLOCK, 0, mask=ranks, pushes=3))


@pytest.fixture
def serving_moved(moved: Home, wait_until: Wait) -> Iterator[tuple[Serving, dict[int, Played]]]:
    """The same, connected to nodes 0 and 2."""
    served = Serving([], torch.float32, COUNT, in_rounds=True)
    ends = {node: Played() for node in (0, 2)}
    threads = []
    for node, end in ends.items():
        greeting = Greeting(1, node, 0, Purpose.EXCHANGE, 5)
        threads.append(threading.Thread(target=served.serve, args=(greeting, end)))
        threads[-1].start()
        wait_until(lambda end=end: end in served._connections, 10)
    served.give_up([1], 2)
    served.add(moved)
    yield served, ends
    for thread, end in zip(threads, ends.values(), strict=True):
        end.close()
        thread.join(10)


def test_a_round_at_a_home_that_has_moved_has_the_sums_of_all_nodes(
    moved: Home, serving_moved: tuple[Serving, dict[int, Played]], wait_until: Wait
) -> None:
    """Whoever comes first: what the others have pushed would count as done, and be in nothing."""
    _, ends = serving_moved
    clock(moved, 0, 0b001)
    ends[0].frames.put(total(3)._replace(mask=0b001))
    ends[0].frames.put(Frame(Kind.PULL, 0))
    wait_until(lambda: ends[0].answers, 10)  # to the question that came behind it
    ends[2].frames.put(total(3)._replace(mask=0b100))
    clock(moved, 2, 0b100)
    wait_until(lambda: ends[2].answers and len(ends[0].answers) == 2, 10)
    assert moved.shard.progress(0) == (4, 0)
    assert moved.shard.rows[0].eq(2).all()


def test_a_home_that_has_moved_waits_for_no_node_without_a_connection(
    moved: Home, serving_moved: tuple[Serving, dict[int, Played]], wait_until: Wait,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    served, ends = serving_moved
    clock(moved, 0, 0b001)
    ends[2].close()
    wait_until(lambda: ends[2] not in served._connections, 10)
    assert served.strike_absent() == [] and not moved.begun()
    monkeypatch.setattr(connections, "ABSENT_S", 0.0)
    assert served.strike_absent() == [2]
    assert moved.begun()


def test_a_home_that_has_moved_waits_for_all_nodes_though_its_server_is_killed(
    moved: Home, path: Path
) -> None:
    served = Serving([moved], torch.float32, COUNT, in_rounds=True)
    served.give_up([1], 2)
    clock(moved, 0, 0b001)
    moved.shard.close()
    again = moved.shard = open_moved(path).shard
    home = Home(0, again, Sum(), NODES, None)
    Serving([home], torch.float32, COUNT, in_rounds=True).give_up([1], 2)
    assert not home.begun()
    clock(home, 2, 0)  # nobody lives there
    assert home.begun()
    clock(home, 2, 0b100)
    assert [member.first_round for member in again.members.all()] == [3, 4]


def test_a_learner_who_comes_late_takes_its_node_out_of_no_round(moved: Home) -> None:
    """At a home that has moved its rank is new; what the others of its node have added counts."""
    served = Serving([moved], torch.float32, COUNT, in_rounds=True)
    served.give_up([1], 3)
    clock(moved, 0, 0b0001)
    clock(moved, 2, 0b0100)
    assert moved.begun()
    clock(moved, 2, 0b1100)
    assert [(m.mask, m.first_round) for m in moved.shard.members.all()] == [(1, 3), (0b1100, 3)]


def test_a_round_that_nobody_is_in_ends_at_its_home(path: Path) -> None:
    """Those who come take part in later ones; they would wait for its end for ever."""
    create_shard(path, IN_ROUNDS, 1, learners=2, had=[3])
    home = open_moved(path)
    left = home.shard.members.take()
    assert left is not None
    home.shard.members.enter(left, 0b10)
    assert home.begun()
    later = Frame(Kind.CLOCK, 0, number=6, mask=0b01)
    assert home.note_clock(0, later) == (6, 0) and home.shard.progress(0) == (3, 0)
    home.shard.members.pause(left)
    assert home.note_clock(0, later) == (6, 0) and home.shard.progress(0) == (6, 0)
    assert not home.shard.rows[0].any()
    home.shard.close()


def test_a_node_that_comes_while_others_begin_a_round_takes_part_in_the_one_after_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_shard(path, IN_ROUNDS, 1, learners=1, had=[3])
    home = open_moved(path)
    enter = home.shard.members.enter

    def late(slot: int, mask: int, first: int) -> None:
        if first == 4:  # others end round 3 just before, and add to round 4
            home.shard.set_progress(0, 4, 0b10)
        enter(slot, mask, first)

    monkeypatch.setattr(home.shard.members, "enter", late)
    assert home.note_clock(0, Frame(Kind.CLOCK, 0, number=3, mask=0b01)) == (5, 0)
    home.shard.close()


def test_a_node_that_comes_back_is_told_how_far_the_furthest_is(home: Home) -> None:
    """Nodes 0 and 2 were gone together: each hears of the other's old clock, and of node 1's."""
    home.note_clock(1, Frame(Kind.CLOCK, 0, number=1000, mask=0b010))
    assert home.note_clock(0, Frame(Kind.CLOCK, 0, number=10, mask=0b001)) == (1000, 1000)
    assert home.note_clock(2, Frame(Kind.CLOCK, 0, number=12, mask=0b100)) == (10, 1000)
    assert home.note_clock(0, Frame(Kind.CLOCK, 0, number=1000, mask=0b001)) == (12, 1000)
    alone = home.note_clock(1, Frame(Kind.CLOCK, 0, mask=0))  # who has no learner is no member
    assert alone == (12, 1000)
    # Its last learner left between two looks: nobody's clock, with a mask.
    home.note_clock(0, Frame(Kind.CLOCK, 0, number=NEVER, mask=0b001))
    assert home.note_clock(2, Frame(Kind.CLOCK, 0, number=12, mask=0b100)) == (NEVER, 0)
    home.shard.close()


def own_shards(
    folder: Path,
    solver: Solver | RoundSolver | None = None,
    *,
    takes_over: bool = False,
    left_bytes: int | None = None,
) -> OwnShards:
    solver = solver or Downpour()
    parameters = Parameters(count=COUNT, dtype="float32", rows=1 + solver.rows, model="model")
    return OwnShards(
        folder, folder, 1, parameters, 1, solver, 3, 1, takes_over=takes_over,
        memory_left_bytes=left_bytes,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["momentum", "diloco"])
def test_a_home_that_moves_keeps_the_replica_s_weights_and_the_snapshot_s_other_rows(
    name: str, shm_folder: Path
) -> None:
    solver = SOLVERS[name]
    (shm_folder / attempt_dir(1)).mkdir(parents=True)
    rows = [torch.full((COUNT,), value) for value in (1.0, 2.0)]
    write_snapshot(shm_folder / snapshot_file(1, 0), [(0, rows)], COUNT)
    files = own_shards(shm_folder, solver)
    replica = files.open(0, is_home=False)
    replica.rows[0].fill_(3)
    replica.update_block(0, lambda *_: replica.set_progress(0, 7, 0))
    relay = (
        RoundsRelay(0, replica)
        if isinstance(solver, RoundSolver)
        else AtOnceRelay(0, replica, solver, Window(shm_folder / "window", 1, torch.float32))
    )
    master = files.open_master(relay)
    assert master.rows[0].eq(3).all() and master.rows[1].eq(2).all()
    assert master.all_progress() == [(7, 0)]
    master.close()
    replica.close()


def test_shards_that_the_job_has_no_memory_for_are_not_begun(shm_folder: Path) -> None:
    """Its limit would end the server, or a learner, with SIGKILL."""
    own_shards(shm_folder, left_bytes=10**9).check_room([True])
    said = r"need [\d,]+ MiB of memory, and 0 MiB are left to the job on this node"
    with pytest.raises(ServerError, match=said):
        own_shards(shm_folder, left_bytes=1000).check_room([True])


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("name", SOLVERS)
def test_a_server_that_sees_a_gpu_starts_with_every_solver(
    name: str, nodes: int, shm_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    solver = SOLVERS[name]
    monkeypatch.setattr(queues, "visible_gpus", lambda: [torch.device("meta")])
    rows = [torch.zeros(COUNT)] * (1 + solver.rows)
    (shm_folder / attempt_dir(1)).mkdir(parents=True)
    write_snapshot(shm_folder / snapshot_file(1, 0), [(0, rows)], COUNT)
    shards = NodeShards(
        own_shards(shm_folder, solver), Homes(1, [0]), 0, [1] * nodes, solver,
        gated=False, stripes=1, dial=lambda *_: Played(), log=lambda _: None, fail=lambda _: None,
    )  # fmt: skip
    shards.close()
    used = shards._queues is not None and bool(shards._queues._others)
    assert used == (nodes > 1 and not isinstance(solver, RoundSolver))  # else nothing is merged


def test_what_learners_work_in_is_not_made_again(shm_folder: Path) -> None:
    """They would go on in what somebody has removed, and new ones in the other."""
    (shm_folder / attempt_dir(1)).mkdir(parents=True)
    write_snapshot(shm_folder / snapshot_file(1, 0), [(0, [torch.zeros(COUNT)])], COUNT)
    first = own_shards(shm_folder)
    first.open(0, True).close()
    second = own_shards(shm_folder, takes_over=True)
    second.open(0, True).close()
    assert second.are_there()
    (shm_folder / "shard-0").unlink()
    with pytest.raises(ServerError, match=r"shard-0 is gone, in which learners .* work") as caught:
        second.open(0, True)
    assert "RemoveIPC" in (caught.value.hint or "") and not second.are_there()
    tell_removed(shm_folder)  # a server that goes on had seen it; no learner works there any more
    own_shards(shm_folder).open(0, True).close()
    assert not was_removed(shm_folder)


def test_what_a_server_that_was_killed_has_not_finished_goes(path: Path) -> None:
    left, compiled = path.with_name(".shard-0.123"), path.with_name(".shard-fused-123")
    left.write_bytes(bytes(100))
    compiled.mkdir()
    (compiled / "cc.so").write_bytes(bytes(100))
    own_shards(path.parent)
    assert not left.exists() and not compiled.exists()


def test_a_folder_where_others_can_write_is_not_used(path: Path) -> None:
    path.parent.chmod(0o777)  # or another user's, which a test can't make
    with pytest.raises(ServerError, match="is not this user's alone"):
        own_shards(path.parent)
    with pytest.raises(PermissionError):
        make_own_folder(path.parent)


@pytest.mark.parametrize("free_pages", [9, 150])
def test_a_little_too_little_shared_memory_is_said_with_numbers_that_differ(
    path: Path, monkeypatch: pytest.MonkeyPatch, free_pages: int
) -> None:
    """What the server and the learners of its node copy blocks to has to fit, too."""
    files = own_shards(path.parent)
    full = os.statvfs_result((4096, 4096, 9, 0, free_pages, 9, 9, 9, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    with pytest.raises(ServerError, match=r"\b1 MiB are needed, 0 MiB are free"):
        files.check_room([True])


def test_a_node_says_whether_it_could_become_the_home_of_one_more(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = own_shards(path.parent)
    assert files.room_for_a_master([False]) and files.room_for_a_master([True])
    full = os.statvfs_result((4096, 4096, 9, 0, 0, 9, 9, 9, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    assert not files.room_for_a_master([False]) and files.room_for_a_master([True])


def test_a_node_that_a_server_before_knew_is_not_waited_for_for_ever(
    home: Home, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.note_clock(1, Frame(Kind.CLOCK, 0, number=5, mask=2))
    home.shard.close()
    home = open_home(path)
    served = Serving([home], torch.float32, COUNT, in_rounds=False)
    assert served.strike_absent() == [] and home.shard.members.slowest() == 5
    monkeypatch.setattr(connections, "ABSENT_S", 0.0)
    assert served.strike_absent() == [1] and home.shard.members.all() == []
    home.shard.close()


def test_a_connection_that_comes_while_the_server_ends_does_no_work(home: Home) -> None:
    served = Serving([home], torch.float32, COUNT, in_rounds=False)
    assert served.close()
    home.shard.close()
    end = Played()
    end.frames.put(total(11))
    served.serve(Greeting(1, 1, 0, Purpose.EXCHANGE, 5), end)
    assert end.answers == [] and end.frames.qsize() == 2  # its total, and its end


def test_a_connection_for_clocks_is_for_clocks(home: Home) -> None:
    served = Serving([home], torch.float32, COUNT, in_rounds=False)
    end = Played()
    end.frames.put(Frame(Kind.PULL, 0))
    served.serve(Greeting(1, 1, 0, Purpose.CLOCKS, 5), end)
    assert end.answers == [] and home.shard.members.proxies() == {}
    home.shard.close()
