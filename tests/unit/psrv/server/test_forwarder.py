"""Learners of two nodes with one shard: its primary on one of them, a forwarder on the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from zygote import Zygote

from psrv.push.flow_control import Outgoing
from psrv.push.rounds import Step, add_to_sum, missing, next_round
from psrv.server import primary
from psrv.server.forwarder import AtOnceForwarder, RoundsForwarder, Sending, local_clock
from psrv.server.outbox import Outbox
from psrv.shard.format import REPLICA, ShardLayout, create_shard
from psrv.shard.membership import Member
from psrv.shard.shard import Shard, ThreadedShard
from psrv.solvers.solver import Downpour, ElasticAveraging, Solver
from psrv.transport.base import ANY, Frame, Kind

Killed = Callable[[Path, str], None]
LAYOUT = ShardLayout(70_000, (torch.float32, torch.float32), "model")

REPLICA_LAYOUT = ShardLayout(65_536, (torch.float32, torch.float32), "model", REPLICA)
IMPORTS = """
import os, sys, torch
from pathlib import Path
from psrv.server.forwarder import AtOnceForwarder
from psrv.rules import Downpour
from psrv.shard.shard import Rows, ThreadedShard
from psrv.shard.format import REPLICA, ShardLayout
from psrv.server.outbox import Outbox
folder = Path(sys.argv[1])
"""
OPEN = """
layout = ShardLayout(65_536, (torch.float32, torch.float32), "model", REPLICA)
shard = ThreadedShard(folder / "forwarder", layout, 1)
"""
DIE_TAKING = """
forwarder = AtOnceForwarder(0, shard, Downpour(), Outbox(folder / "outbox", 4, torch.float32))
set_progress = shard.set_progress
def die(*progress):
    set_progress(*progress)
    os.kill(os.getpid(), 9)
shard.set_progress = die
forwarder.take(0)
"""
WIDE_LAYOUT = ShardLayout(150_000, (torch.float32, torch.float32), "wide", REPLICA)
OPEN_WIDE = """
layout = ShardLayout(150_000, (torch.float32, torch.float32), "wide", REPLICA)
shard = ThreadedShard(folder / "wide", layout, 1)
forwarder = AtOnceForwarder(0, shard, Downpour(), Outbox(folder / "wide-outbox", 4, torch.float32))
set_progress, left = shard.set_progress, [2]
def die_at_the_second(*progress):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), 9)
    set_progress(*progress)
"""


@pytest.fixture
def be_killed(tmp_path: Path, zygote: Zygote) -> Killed:
    """Runs code in a process that ends by a signal."""

    def run(folder: Path, code: str) -> None:
        program = tmp_path / "program.py"
        program.write_text(IMPORTS + code)
        done = zygote.run(program, folder)
        assert done.returncode == -9, done.stderr

    return run


@pytest.fixture
def shard(shm_folder: Path) -> Iterator[ThreadedShard]:
    create_shard(shm_folder / "primary", LAYOUT, 1, learners=4)
    shard = ThreadedShard(shm_folder / "primary", LAYOUT, 1)
    yield shard
    shard.close()


def add(rows: Sequence[torch.Tensor], total: torch.Tensor, count: int, rate: float) -> None:
    rows[0].add_(total, alpha=100 * count)


def add_sum(
    shard: ThreadedShard, rounds: int, mask: int, total: torch.Tensor, rate: float, step: Step
) -> bool:
    frame = Frame(Kind.TOTAL, number=rounds, mask=mask, rate=rate)
    return primary.add_sum(shard, 0, frame, total, step)


def test_a_node_adds_in_the_turn_of_its_lowest_rank(shard):
    first, last = (shard.members.proxy(node) for node in (1, 2))
    assert first is not None and last is not None
    shard.members.enter(first, 0b0011)
    shard.members.enter(last, 0b1100)
    ones = torch.ones(LAYOUT.block_count)
    assert not add_sum(shard, 0, 0b1000, ones, 0.1, add)  # one of its own ranks has died
    assert add_sum(shard, 0, 0b0011, 2 * ones, 0.1, add)
    assert add_sum(shard, 0, 0b0011, 2 * ones, 0.1, add)  # sent twice
    assert not primary.has_ended(shard, 0, 1, add)
    assert add_sum(shard, 0, 0b1000, ones, 0.1, add)
    weights = torch.empty(LAYOUT.block_count)
    assert primary.has_ended(shard, 0, 1, add)
    assert primary.copy_weights(shard, range(1), [weights]) == 1 and weights.eq(900).all()
    assert add_sum(shard, 0, 0b1000, ones, 0.1, add)  # too late
    assert not add_sum(shard, 2, 0b0011, ones, 0.1, add)  # too early
    assert shard.progress(0) == (1, 0) and next_round(shard) == 2


def test_a_round_has_the_rate_of_its_lowest_rank(shard):
    nodes = [shard.members.proxy(node) for node in (1, 2)]
    for number, node in enumerate(nodes):
        assert node is not None
        shard.members.enter(node, 1 << number)
    rates: list[float] = []

    def note(rows: Sequence[torch.Tensor], total: torch.Tensor, count: int, rate: float) -> None:
        rates.append(rate)

    ones = torch.ones(LAYOUT.block_count)
    for rounds, rate in ((0, 0.5), (1, 0.25)):
        assert add_sum(shard, rounds, 0b01, ones, rate, note)
        assert add_sum(shard, rounds, 0b10, ones, rate / 2, note)
    assert rates == [0.5, 0.25]


def test_a_round_ends_without_a_node_that_has_no_learners_left(shard):
    here, there = (shard.members.proxy(node) for node in (1, 2))
    assert here is not None and there is not None
    shard.members.enter(here, 0b01)
    shard.members.enter(there, 0b10)
    weights = torch.ones(LAYOUT.block_count)
    assert add_sum(shard, 0, 0b01, weights, 0.1, add)
    assert [member.slot for member in missing(shard, *shard.progress(0))] == [there]
    shard.members.pause(there)
    assert primary.has_ended(shard, 0, 1, add)
    assert primary.copy_weights(shard, range(1), [weights]) == 1 and weights.eq(100).all()


def test_a_proxy_outlives_its_server_and_is_taken_over(shm_folder, be_killed):
    create_shard(shm_folder / "primary", LAYOUT, 1)
    be_killed(shm_folder, """
layout = ShardLayout(70_000, (torch.float32, torch.float32), "model")
shard = ThreadedShard(folder / "primary", layout, 1)
slot = shard.members.proxy(3)
shard.members.enter(slot, 0b1100, 5)
shard.members.set_clock(slot, 7)
(folder / "slot").write_text(str(slot))
os.kill(os.getpid(), 9)
""")  # fmt: skip
    slot = int((shm_folder / "slot").read_text())
    shard = ThreadedShard(shm_folder / "primary", LAYOUT, 1)
    members = shard.members
    members.remove_dead()
    assert members.proxies() == {3: slot} and members.all() == [(0b1100, slot, 5)]
    assert members.slowest() == 7
    assert members.proxy(2) not in (slot, shard.slot)
    assert members.proxy(3) == slot
    members.remove(slot)
    assert members.all() == [] and set(members.proxies()) == {2}
    shard.close()


def test_a_forwarded_sum_lacks_a_killed_learner_s_unfinished_addition(shm_folder, be_killed):
    create_shard(shm_folder / "forwarder", REPLICA_LAYOUT, 1, learners=2)
    server = ThreadedShard(shm_folder / "forwarder", REPLICA_LAYOUT, 1)
    forwarder = RoundsForwarder(0, server)
    server.members.enter(server.slot, 0b01)
    add_to_sum(server, 0, 0, 0b01, torch.ones(65_536), 0.25, None)
    be_killed(shm_folder, OPEN + """
shard.members.enter(shard.slot, 0b10)
def half(parts, block):
    parts[-1][:30_000] += 10
    os.kill(os.getpid(), 9)
shard.update_block(0, half, changes=Rows(1, 2))
""")  # fmt: skip
    assert forwarder.ready() == []
    assert forwarder.take(0) is None
    server.members.remove_dead()
    assert forwarder.ready() == [0]
    sending = forwarder.take(0)
    assert sending is not None and sending[0].mask == 0b01
    assert sending[0].rate == 0.25
    assert torch.frombuffer(bytearray(sending[1]), dtype=torch.float32).eq(1).all()
    server.close()


def test_a_forwarder_finds_complete_sums_without_checking_members_per_block(
    shm_folder, monkeypatch
):
    """It looks a thousand times per second, on the cores that the learners need."""
    layout = ShardLayout(65_536 * 400, (torch.float32, torch.float32), "model", REPLICA)
    create_shard(shm_folder / "forwarder", layout, 1, learners=3)
    server = ThreadedShard(shm_folder / "forwarder", layout, 1)
    forwarder, members = RoundsForwarder(0, server), server.members
    looks: list[list[Member]] = []
    everyone = members.all
    monkeypatch.setattr(members, "all", lambda: looks.append(found := everyone()) or found)
    for rank, first in ((0, 0), (1, 0), (2, 4)):  # the last one joins in round 4
        slot = members.take()
        assert slot is not None
        members.enter(slot, 1 << rank, first)
    steps = [(3, 0b001), (3, 0b011), (4, 0b011), (4, 0b111), (3, 0), (4, 0b110), (3, 0b010)]
    for block in range(400):
        server.set_progress(block, *steps[block // 2 % len(steps)])
    whole = [group for group in range(200) if group % len(steps) in (1, 3)]
    assert forwarder.ready() == whole and len(looks) == 1
    assert forwarder.behind == 4
    assert forwarder.take(1) is not None and forwarder.take(0) is None
    assert forwarder.ready() == whole[1:]
    forwarder.unanswered()
    assert forwarder.ready() == whole
    members.pause(1)  # rank 0 was killed: its slot is the first after the server's
    assert forwarder.ready() == [g for g in range(200) if g % len(steps) in (1, 3, 5, 6)]
    server.close()


def test_a_replica_in_rounds_pulls_the_same_round_from_a_new_primary(shm_folder):
    create_shard(shm_folder / "forwarder", REPLICA_LAYOUT, 1, learners=2)
    server = ThreadedShard(shm_folder / "forwarder", REPLICA_LAYOUT, 1)
    forwarder, weights = RoundsForwarder(0, server), torch.ones(65_536)
    forwarder.give(Frame(Kind.WEIGHTS, 0, 0, 3), weights)
    assert forwarder.pull(0).number == 3
    server.members.enter(server.slot, 0b01)
    add_to_sum(server, 0, 3, 0b01, weights, 0.25, None)
    forwarder.distrust_replica()
    assert forwarder.pull(0).number == ANY
    forwarder.pulled(Frame(Kind.PULLED, 0, 0, 3), 5 * weights)
    assert server.rows[0].eq(5).all() and server.progress(0) == (3, 0b01)
    forwarder.distrust_replica()
    forwarder.pulled(Frame(Kind.PULLED, 0, 0, 2), 7 * weights)  # the new primary is behind
    assert server.rows[0].eq(5).all() and forwarder.pull(0).number == 3
    server.close()


def test_a_node_stays_in_a_round_until_its_departed_learners_are_answered(shm_folder):
    """Their sum is in flight or soon will be; a learner killed in between may leave none."""
    create_shard(shm_folder / "wide", WIDE_LAYOUT, 1, learners=2)
    server = ThreadedShard(shm_folder / "wide", WIDE_LAYOUT, 1)
    forwarder, ones = RoundsForwarder(0, server), torch.ones(65_536)
    last = 150_000 - 2 * 65_536
    for block in (0, 1):
        add_to_sum(server, block, 0, 0b01, ones, 0.25, None)
    assert local_clock(forwarder) == (0, 0, 0)
    add_to_sum(server, 2, 0, 0b01, ones[:last], 0.25, None)
    server.members.enter(server.slot, 0b10, 1)
    assert local_clock(forwarder) == (0b11, 0, 0)  # in the sum, although the newcomer begins later
    server.members.pause(server.slot)
    forwarder.give(Frame(Kind.WEIGHTS, 0, 0, 1), torch.ones(2 * 65_536))
    assert local_clock(forwarder) == (0b01, 0, 1)
    forwarder.give(Frame(Kind.WEIGHTS, 0, 2, 1), ones[:last])
    assert local_clock(forwarder) == (0, 0, 1)
    server.close()


def test_a_forwarder_keeps_pulling_while_its_learners_wait_for_a_later_round(shm_folder):
    create_shard(shm_folder / "forwarder", REPLICA_LAYOUT, 1, learners=2)
    server = ThreadedShard(shm_folder / "forwarder", REPLICA_LAYOUT, 1)
    forwarder, weights = RoundsForwarder(0, server), torch.ones(65_536)
    assert not forwarder.is_behind  # it has no learners
    server.members.enter(server.slot, 0b01, 2)
    assert server.want_refresh() == 1
    assert forwarder.is_behind and forwarder.wanted == 0  # the primary does not know of the wish
    forwarder.announced = 1
    forwarder.pulled(Frame(Kind.PULLED, 0, 0, 2), weights)
    assert not forwarder.is_behind and forwarder.wanted == 1
    server.close()


def test_a_server_with_another_slot_undoes_its_killed_predecessor_s_unfinished_send(
    shm_folder, be_killed
):
    create_shard(shm_folder / "forwarder", REPLICA_LAYOUT, 1, learners=2)
    learner = Shard(shm_folder / "forwarder", REPLICA_LAYOUT, 1)
    be_killed(shm_folder, OPEN + """
shard.update_block(0, lambda parts, block: (parts[1].fill_(1), shard.count_push(block)))
""" + DIE_TAKING)  # fmt: skip
    learner.close()
    server = ThreadedShard(shm_folder / "forwarder", REPLICA_LAYOUT, 1)
    outbox = Outbox(shm_folder / "outbox", 4, torch.float32)
    forwarder = AtOnceForwarder(0, server, Downpour(), outbox)
    assert server.slot == 0 and forwarder.exchanges() == set()
    outbox.keep_only(set())
    assert forwarder.unanswered() == [] and forwarder.ready() == [0]
    server.close()


def push_ones(shard: Shard, blocks: Iterable[int]) -> None:
    """Add to the total of each block its number plus one."""
    for block in blocks:

        def add(parts: Sequence[torch.Tensor], block: int) -> None:
            parts[1].fill_(1 + block)
            shard.count_push(block)

        shard.update_block(block, add)


def test_pushes_that_a_killed_server_was_taking_do_not_count_as_arrived(shm_folder, be_killed):
    """A leaving learner may wait before or after these pushes are undone."""
    create_shard(shm_folder / "forwarder", REPLICA_LAYOUT, 1, learners=2)
    shard = ThreadedShard(shm_folder / "forwarder", REPLICA_LAYOUT, 1)
    push_ones(shard, [0])
    before = Outgoing([shard])
    be_killed(shm_folder, OPEN + DIE_TAKING)
    assert not before.has_come()
    then = Outgoing([shard])
    shard.read_block(0, lambda *_: None)  # as the next server does when it starts
    assert shard.progress(0) == (0, 1)
    assert not before.has_come() and not then.has_come()
    outbox = Outbox(shm_folder / "outbox", 4, torch.float32)
    forwarder = AtOnceForwarder(0, shard, Downpour(), outbox)
    outbox.keep_only(set())
    assert forwarder.take(0) is not None
    assert not before.has_come() and not then.has_come()
    forwarder.give(Frame(Kind.WEIGHTS, 0, 0, 7), torch.ones(65_536))
    assert before.has_come() and then.has_come()
    shard.close()


def sent(
    forwarder: AtOnceForwarder, sendings: Iterable[Sending | None]
) -> list[tuple[int, int, set[int]]]:
    """Return for each run its first block, the number of its elements and their values."""
    found = []
    for sending in sendings:
        assert sending is not None
        values = torch.frombuffer(bytearray(sending[1]), dtype=torch.float32)
        found.append((sending[0].block, len(values), set(values.int().tolist())))
    return found


@pytest.fixture
def wide(shm_folder: Path) -> Path:
    create_shard(shm_folder / "wide", WIDE_LAYOUT, 1, learners=2)
    return shm_folder


def open_wide(folder: Path, solver: Solver | None = None) -> tuple[ThreadedShard, AtOnceForwarder]:
    shard = ThreadedShard(folder / "wide", WIDE_LAYOUT, 1)
    outbox = Outbox(folder / "wide-outbox", 4, torch.float32)
    forwarder = AtOnceForwarder(0, shard, solver or Downpour(), outbox)
    outbox.keep_only(forwarder.exchanges())
    return shard, forwarder


def test_neighbouring_blocks_with_equal_push_counts_share_a_frame(wide):
    shard, forwarder = open_wide(wide)
    push_ones(shard, [0, 1, 2])
    assert forwarder.ready() == [0, 1]
    assert sent(forwarder, map(forwarder.take, [0, 1])) == [(0, 131_072, {1, 2}), (2, 18_928, {3})]
    assert forwarder.ready() == [] and forwarder.take(0) is None
    assert sent(forwarder, forwarder.unanswered()) == [(0, 131_072, {1, 2}), (2, 18_928, {3})]
    for block, count in ((0, 131_072), (2, 18_928)):
        forwarder.give(Frame(Kind.WEIGHTS, 0, block, 7), torch.full((count,), 9.0))
    assert shard.rows[0].eq(9).all() and forwarder.exchanges() == set()
    push_ones(shard, [0, 0, 1])
    assert sent(forwarder, map(forwarder.take, [0, 0])) == [(0, 65_536, {1}), (1, 65_536, {2})]
    shard.close()


def test_weights_that_draw_the_replica_meanwhile_are_not_lost_in_an_answer(wide):
    """Elastic averaging: the sum of center and learners stays."""
    shard, forwarder = open_wide(wide, ElasticAveraging(0.2))
    push_ones(shard, [0, 2])
    assert len([forwarder.take(group) for group in (0, 1)]) == 2
    push_ones(shard, [0])
    for block, count in ((0, 65_536), (2, 18_928)):
        forwarder.give(Frame(Kind.WEIGHTS, 0, block, 7), torch.full((count,), 9.0))
    assert shard.rows[0][:65_536].eq(9 + 1).all() and shard.rows[0][-18_928:].eq(9).all()
    settled = torch.empty(150_000)
    forwarder.settled(settled)
    assert settled[:65_536].eq(9).all()
    shard.close()


def test_a_server_killed_while_taking_a_run_sends_each_total_once(wide, be_killed):
    shard, _ = open_wide(wide)
    push_ones(shard, [0, 1])
    shard.close()
    be_killed(wide, OPEN_WIDE + "shard.set_progress = die_at_the_second\nforwarder.take(0)\n")
    shard, forwarder = open_wide(wide)
    assert sent(forwarder, forwarder.unanswered()) == [(0, 65_536, {1})]
    assert forwarder.ready() == [0]
    assert sent(forwarder, [forwarder.take(0)]) == [(1, 65_536, {2})]
    shard.close()


def test_a_server_killed_while_applying_an_answer_asks_for_the_rest(wide, be_killed):
    shard, forwarder = open_wide(wide)
    push_ones(shard, [0, 1])
    assert forwarder.take(0) is not None
    shard.close()
    be_killed(
        wide,
        OPEN_WIDE
        + """
from psrv.transport.base import Frame, Kind
shard.set_progress = die_at_the_second
forwarder.give(Frame(Kind.WEIGHTS, 0, 0, 7), torch.full((131_072,), 9.0))
""",
    )
    shard, forwarder = open_wide(wide)
    assert shard.rows[0][:65_536].eq(9).all() and shard.rows[0][65_536:].eq(0).all()
    assert sent(forwarder, forwarder.unanswered()) == [(1, 65_536, {2})]
    forwarder.give(Frame(Kind.WEIGHTS, 0, 1, 7), torch.full((65_536,), 9.0))
    assert shard.rows[0][:131_072].eq(9).all() and forwarder.exchanges() == set()
    shard.close()
