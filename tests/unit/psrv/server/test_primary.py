"""A shard's primary and other nodes: it merges no total twice, and never waits in vain."""

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
from psrv.server.connections import PeerConnections
from psrv.server.forwarder import AtOnceForwarder, RoundsForwarder
from psrv.server.outbox import Outbox
from psrv.server.primary import Primary
from psrv.server.queues import Queues
from psrv.server.shard_files import Settings, ShardFiles
from psrv.server.shards import NodeShards
from psrv.shard.format import NEVER, ShardLayout, create_shard
from psrv.shard.private_folder import make_private_folder, mark_removed, was_removed
from psrv.shard.shard import ThreadedShard
from psrv.solvers.partition import ShardSet
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
def primary(path: Path) -> Primary:
    create_shard(path, LAYOUT, 1)
    return open_primary(path)


def open_primary(path: Path) -> Primary:
    return Primary(0, ThreadedShard(path, LAYOUT, 1), Downpour(), NODES, Queues(Downpour()))


def total(number: int) -> Frame:
    return Frame(Kind.TOTAL, 0, 0, number, 0, pushes=1, rate=1.0, size=4 * COUNT)


def merge(primary: Primary, node: int, number: int) -> float:
    into = torch.empty(COUNT)
    primary.merge(node, total(number), range(1), [torch.ones(COUNT)], [into])
    return float(into[0])


def test_a_repeated_total_is_not_merged_again(primary, path):
    assert merge(primary, 1, 11) == -1
    primary._merged.note(1, 0, 0)  # as if killed before it was noted
    primary.shard.close()
    primary = open_primary(path)
    assert merge(primary, 2, 22) == -2
    assert merge(primary, 1, 11) == -2
    assert merge(primary, 2, 22) == -2
    assert merge(primary, 2, 11) == -3  # another node's numbers are separate
    primary.shard.close()


class Played:
    """A connection that delivers the frames put into it, even after its end."""

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


def test_a_new_connection_waits_for_the_end_of_the_one_before_it(primary, wait_until):
    served = PeerConnections([primary], torch.float32, COUNT, in_rounds=False)
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
        wait_until(lambda end=end: end in served._connections, 60)
    closed.wait(60)
    old.frames.put(total(11))  # it was received before, but is merged late
    old.frames.put(None)
    threads[0].join(60)
    wait_until(lambda: len(new.answers) == 2, 60)
    new.close()
    threads[1].join(60)
    assert primary.shard.rows[0].eq(-2).all() and closed.is_set()
    primary.shard.close()


@pytest.fixture
def waiting(path: Path) -> Iterator[Primary]:
    """A primary in rounds that waits for node 2; each of three nodes has one learner."""
    create_shard(path, IN_ROUNDS, 1, learners=3)
    shard = ThreadedShard(path, IN_ROUNDS, 1)
    primary = Primary(0, shard, ParallelSGD(), NODES, None)
    shard.members.enter(shard.slot, 0b010)
    primary.note_clock(0, Frame(Kind.CLOCK, 0, mask=0b001))
    assert not primary.begun()
    yield primary
    shard.close()


def test_rounds_begin_without_a_node_that_is_lost_after_all_joined(waiting):
    served = PeerConnections([waiting], torch.float32, COUNT, in_rounds=True)
    waiting.note_clock(2, Frame(Kind.CLOCK, 0, mask=0b100))
    assert waiting.begun()
    served.give_up([2], 2)
    assert waiting.begun()
    with pytest.raises(RefusedError, match="node 2 was given up"):
        waiting.note_clock(2, Frame(Kind.CLOCK, 0, mask=0b100))


def test_learners_of_a_node_lost_before_the_first_round_are_not_waited_for(waiting):
    served = PeerConnections([waiting], torch.float32, COUNT, in_rounds=True)
    served.give_up([2], 2)
    assert waiting.begun()


def test_a_primary_added_after_a_connection_is_served_in_rounds(waiting, wait_until):
    served = PeerConnections([], torch.float32, COUNT, in_rounds=True)
    end = Played()
    greeting = Greeting(1, 2, 0, Purpose.EXCHANGE, 5)
    thread = threading.Thread(target=served.serve, args=(greeting, end))
    thread.start()
    wait_until(lambda: end in served._connections, 60)
    served.add(waiting)
    waiting.note_clock(2, Frame(Kind.CLOCK, 0, mask=0b100))
    assert waiting.begun()
    waiting.shard.members.pause(waiting.shard.slot)
    waiting.pause(0)
    end.frames.put(total(0)._replace(mask=0b100))
    wait_until(lambda: end.answers, 60)
    assert end.answers[0].number == 1 and waiting.shard.rows[0].eq(-1).all()
    end.close()
    thread.join(60)


class Sum(ParallelSGD):
    """Adds up all totals."""

    def step(
        self, server: Sequence[torch.Tensor], total: torch.Tensor, count: int, rate: float
    ) -> None:
        server[0].add_(total)


def open_moved(path: Path) -> Primary:
    return Primary(0, ThreadedShard(path, IN_ROUNDS, 1), Sum(), NODES, None)


@pytest.fixture
def moved(path: Path) -> Iterator[Primary]:
    """A replica that became the primary after three rounds, when node 1 was lost."""
    create_shard(path, IN_ROUNDS, 1, had=[3])
    primary = open_moved(path)
    yield primary
    primary.shard.close()


def clock(primary: Primary, node: int, ranks: int) -> None:
    primary.note_clock(node, Frame(Kind.CLOCK, 0, mask=ranks, pushes=3))


@pytest.fixture
def serving_moved(
    moved: Primary, wait_until: Wait
) -> Iterator[tuple[PeerConnections, dict[int, Played]]]:
    """The primary `moved`, connected to nodes 0 and 2."""
    served = PeerConnections([], torch.float32, COUNT, in_rounds=True)
    ends = {node: Played() for node in (0, 2)}
    threads = []
    for node, end in ends.items():
        greeting = Greeting(1, node, 0, Purpose.EXCHANGE, 5)
        threads.append(threading.Thread(target=served.serve, args=(greeting, end)))
        threads[-1].start()
        wait_until(lambda end=end: end in served._connections, 60)
    served.give_up([1], 2)
    served.add(moved)
    yield served, ends
    for thread, end in zip(threads, ends.values(), strict=True):
        end.close()
        thread.join(60)


def test_a_round_on_a_promoted_primary_has_the_sums_of_all_nodes(moved, serving_moved, wait_until):
    """In any order of arrival. Otherwise the others' pushes would count as done, but be lost."""
    _, ends = serving_moved
    clock(moved, 0, 0b001)
    ends[0].frames.put(total(3)._replace(mask=0b001))
    ends[0].frames.put(Frame(Kind.PULL, 0))
    wait_until(lambda: ends[0].answers, 60)  # the answer to the PULL behind it
    ends[2].frames.put(total(3)._replace(mask=0b100))
    clock(moved, 2, 0b100)
    wait_until(lambda: ends[2].answers and len(ends[0].answers) == 2, 60)
    assert moved.shard.progress(0) == (4, 0)
    assert moved.shard.rows[0].eq(2).all()


def test_a_promoted_primary_waits_for_no_unconnected_node(
    moved: Primary, serving_moved: tuple[PeerConnections, dict[int, Played]], wait_until: Wait,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    served, ends = serving_moved
    clock(moved, 0, 0b001)
    ends[2].close()
    wait_until(lambda: ends[2] not in served._connections, 60)
    assert served.pause_absent() == [] and not moved.begun()
    monkeypatch.setattr(connections, "ABSENT_S", 0.0)
    assert served.pause_absent() == [2]
    assert moved.begun()


def test_a_promoted_primary_waits_for_all_nodes_even_if_its_server_is_killed(moved, path):
    served = PeerConnections([moved], torch.float32, COUNT, in_rounds=True)
    served.give_up([1], 2)
    clock(moved, 0, 0b001)
    moved.shard.close()
    again = moved.shard = open_moved(path).shard
    primary = Primary(0, again, Sum(), NODES, None)
    PeerConnections([primary], torch.float32, COUNT, in_rounds=True).give_up([1], 2)
    assert not primary.begun()
    clock(primary, 2, 0)  # it has no learners
    assert primary.begun()
    clock(primary, 2, 0b100)
    assert [member.first_round for member in again.members.all()] == [3, 4]


def test_a_late_learner_does_not_take_its_node_out_of_a_round(moved):
    """Its rank is new to a promoted primary; the sums of its node's other learners count."""
    served = PeerConnections([moved], torch.float32, COUNT, in_rounds=True)
    served.give_up([1], 3)
    clock(moved, 0, 0b0001)
    clock(moved, 2, 0b0100)
    assert moved.begun()
    clock(moved, 2, 0b1100)
    assert [(m.mask, m.first_round) for m in moved.shard.members.all()] == [(1, 3), (0b1100, 3)]


def test_a_round_without_members_ends_on_its_primary(path):
    """New learners join later rounds, and would otherwise wait forever for the end of this one."""
    create_shard(path, IN_ROUNDS, 1, learners=2, had=[3])
    primary = open_moved(path)
    left = primary.shard.members.take()
    assert left is not None
    primary.shard.members.enter(left, 0b10)
    assert primary.begun()
    later = Frame(Kind.CLOCK, 0, number=6, mask=0b01)
    assert primary.note_clock(0, later) == (6, 0) and primary.shard.progress(0) == (3, 0)
    primary.shard.members.pause(left)
    assert primary.note_clock(0, later) == (6, 0) and primary.shard.progress(0) == (6, 0)
    assert not primary.shard.rows[0].any()
    primary.shard.close()


def test_a_node_that_joins_during_a_round_takes_part_in_the_next(path, monkeypatch):
    create_shard(path, IN_ROUNDS, 1, learners=1, had=[3])
    primary = open_moved(path)
    enter = primary.shard.members.enter

    def late(slot: int, mask: int, first: int) -> None:
        if first == 4:  # just before, others end round 3 and add to round 4
            primary.shard.set_progress(0, 4, 0b10)
        enter(slot, mask, first)

    monkeypatch.setattr(primary.shard.members, "enter", late)
    assert primary.note_clock(0, Frame(Kind.CLOCK, 0, number=3, mask=0b01)) == (5, 0)
    primary.shard.close()


def test_a_returning_node_gets_the_largest_clock(primary):
    """Nodes 0 and 2 were away together: each hears the other's old clock and that of node 1."""
    primary.note_clock(1, Frame(Kind.CLOCK, 0, number=1000, mask=0b010))
    assert primary.note_clock(0, Frame(Kind.CLOCK, 0, number=10, mask=0b001)) == (1000, 1000)
    assert primary.note_clock(2, Frame(Kind.CLOCK, 0, number=12, mask=0b100)) == (10, 1000)
    assert primary.note_clock(0, Frame(Kind.CLOCK, 0, number=1000, mask=0b001)) == (12, 1000)
    alone = primary.note_clock(1, Frame(Kind.CLOCK, 0, mask=0))  # without learners: no member
    assert alone == (12, 1000)
    # Its last learner left between two looks: a mask without a learner's clock.
    primary.note_clock(0, Frame(Kind.CLOCK, 0, number=NEVER, mask=0b001))
    assert primary.note_clock(2, Frame(Kind.CLOCK, 0, number=12, mask=0b100)) == (NEVER, 0)
    primary.shard.close()


def shard_files(
    folder: Path,
    solver: Solver | RoundSolver | None = None,
    *,
    takes_over: bool = False,
    left_bytes: int | None = None,
) -> ShardFiles:
    solver = solver or Downpour()
    parameters = Parameters(count=COUNT, dtype="float32", rows=1 + solver.rows, model="model")
    settings = Settings(
        1, 0, [1, 1, 1], solver, "", takes_over=takes_over, memory_left=lambda: left_bytes
    )
    return ShardFiles(ShardSet(folder, parameters, 1, 1, folder), settings)


@pytest.mark.parametrize("name", ["momentum", "diloco"])
def test_a_promoted_primary_has_the_replica_s_weights_and_the_snapshot_s_rows(name, shm_folder):
    solver = SOLVERS[name]
    (shm_folder / attempt_dir(1)).mkdir(parents=True)
    rows = [torch.full((COUNT,), value) for value in (1.0, 2.0)]
    write_snapshot(shm_folder / snapshot_file(1, 0), [(0, rows)], COUNT)
    files = shard_files(shm_folder, solver)
    replica = files.open(0, is_primary=False)
    replica.rows[0].fill_(3)
    replica.update_block(0, lambda *_: replica.set_progress(0, 7, 0))
    forwarder = (
        RoundsForwarder(0, replica)
        if isinstance(solver, RoundSolver)
        else AtOnceForwarder(0, replica, solver, Outbox(shm_folder / "outbox", 1, torch.float32))
    )
    promoted = files.promote(forwarder)
    assert promoted.rows[0].eq(3).all() and promoted.rows[1].eq(2).all()
    assert promoted.all_progress() == [(7, 0)]
    promoted.close()
    replica.close()


def test_shards_beyond_the_job_s_memory_are_refused(shm_folder):
    """The limit would end the server, or a learner, with SIGKILL."""
    shard_files(shm_folder, left_bytes=10**9).check_memory([True])
    said = r"need [\d,]+ MiB of memory, and 0 MiB are left to the job on this node"
    with pytest.raises(ServerError, match=said):
        shard_files(shm_folder, left_bytes=1000).check_memory([True])


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("name", SOLVERS)
def test_a_server_that_sees_a_gpu_starts_with_every_solver(name, nodes, shm_folder, monkeypatch):
    solver = SOLVERS[name]
    monkeypatch.setattr(queues, "visible_gpus", lambda: [torch.device("meta")])
    rows = [torch.zeros(COUNT)] * (1 + solver.rows)
    (shm_folder / attempt_dir(1)).mkdir(parents=True)
    write_snapshot(shm_folder / snapshot_file(1, 0), [(0, rows)], COUNT)
    shards = NodeShards(
        shard_files(shm_folder, solver), Homes(1, [0]), Settings(1, 0, [1] * nodes, solver, ""),
        dial=lambda *_: Played(), log=lambda _: None, fail=lambda _: None,
    )  # fmt: skip
    shards.close()
    used = shards._queues is not None and bool(shards._queues._others)
    assert used == (nodes > 1 and not isinstance(solver, RoundSolver))  # else nothing is merged


def test_a_shard_that_learners_work_in_is_not_made_again(shm_folder):
    """They would continue in the removed file, and new learners in another one."""
    (shm_folder / attempt_dir(1)).mkdir(parents=True)
    write_snapshot(shm_folder / snapshot_file(1, 0), [(0, [torch.zeros(COUNT)])], COUNT)
    first = shard_files(shm_folder)
    first.open(0, True).close()
    second = shard_files(shm_folder, takes_over=True)
    second.open(0, True).close()
    assert second.exist()
    (shm_folder / "shard-0").unlink()
    with pytest.raises(ServerError, match=r"shard-0 is gone, in which learners .* work") as caught:
        second.open(0, True)
    assert "RemoveIPC" in (caught.value.hint or "") and not second.exist()
    mark_removed(shm_folder)  # a running server has noticed; no learner works there any more
    shard_files(shm_folder).open(0, True).close()
    assert not was_removed(shm_folder)


def test_unfinished_files_of_a_killed_server_are_removed(path):
    left, compiled = path.with_name(".shard-0.123"), path.with_name(".shard-native-123")
    left.write_bytes(bytes(100))
    compiled.mkdir()
    (compiled / "cc.so").write_bytes(bytes(100))
    shard_files(path.parent)
    assert not left.exists() and not compiled.exists()


def test_a_folder_that_others_can_write_to_is_refused(path):
    path.parent.chmod(0o777)  # the same holds for another user's folder, which a test can't make
    with pytest.raises(ServerError, match="is not private to this user"):
        shard_files(path.parent)
    with pytest.raises(PermissionError):
        make_private_folder(path.parent)


@pytest.mark.parametrize("free_pages", [9, 150])
def test_a_small_lack_of_shared_memory_is_reported_with_different_numbers(
    path, monkeypatch, free_pages
):
    """The memory for undo copies of the server and its node's learners must fit, too."""
    files = shard_files(path.parent)
    full = os.statvfs_result((4096, 4096, 9, 0, free_pages, 9, 9, 9, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    with pytest.raises(ServerError, match=r"\b1 MiB are needed, 0 MiB are free"):
        files.check_memory([True])


def test_a_server_logs_whether_it_could_hold_one_more_primary(path, monkeypatch):
    files = shard_files(path.parent)
    assert files.can_host_another_primary([False]) and files.can_host_another_primary([True])
    full = os.statvfs_result((4096, 4096, 9, 0, 0, 9, 9, 9, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    assert not files.can_host_another_primary([False]) and files.can_host_another_primary([True])


def test_a_node_known_to_an_earlier_server_is_not_waited_for_for_ever(primary, path, monkeypatch):
    primary.note_clock(1, Frame(Kind.CLOCK, 0, number=5, mask=2))
    primary.shard.close()
    primary = open_primary(path)
    served = PeerConnections([primary], torch.float32, COUNT, in_rounds=False)
    assert served.pause_absent() == [] and primary.shard.members.slowest() == 5
    monkeypatch.setattr(connections, "ABSENT_S", 0.0)
    assert served.pause_absent() == [1] and primary.shard.members.all() == []
    primary.shard.close()


def test_a_connection_opened_while_the_server_ends_is_not_served(primary):
    served = PeerConnections([primary], torch.float32, COUNT, in_rounds=False)
    assert served.close()
    primary.shard.close()
    end = Played()
    end.frames.put(total(11))
    served.serve(Greeting(1, 1, 0, Purpose.EXCHANGE, 5), end)
    assert end.answers == [] and end.frames.qsize() == 2  # its total, and its end


def test_a_clock_connection_carries_clocks_only(primary):
    served = PeerConnections([primary], torch.float32, COUNT, in_rounds=False)
    end = Played()
    end.frames.put(Frame(Kind.PULL, 0))
    served.serve(Greeting(1, 1, 0, Purpose.CLOCKS, 5), end)
    assert end.answers == [] and primary.shard.members.proxies() == {}
    primary.shard.close()
