"""Rounds of all learners: sums in rank order, even if learners are killed and come back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from repository import SUPPORT
from zygote import Zygote

from psrv.errors import LateError, ServerError
from psrv.push.push import InRounds
from psrv.push.rounds import Rounds, Step, Turn, add_to_sum
from psrv.push.staleness import StalenessBound
from psrv.push.waiting import FOR_LEARNERS, WaitPolicy, Warn
from psrv.shard.format import NEVER, REPLICA, ShardLayout, create_shard
from psrv.shard.shard import Shard
from psrv.solvers.solver import ParallelSGD

PROGRAM = SUPPORT / "rounds_program.py"
LAYOUT = ShardLayout(70_000, (torch.float32, torch.float32), "model")

DIES_AT_THE_END = """
import os, sys, torch
from pathlib import Path
from psrv.push.rounds import settle
from psrv.shard.shard import Shard
from psrv.shard.format import ShardLayout
shard = Shard(Path(sys.argv[1]), ShardLayout(70_000, (torch.float32,) * 2, "model"), 1)
set_progress = shard.set_progress
def die(*progress):
    set_progress(*progress)
    os.kill(os.getpid(), 9)
shard.set_progress = die
settle(shard, 0, 0, lambda rows, total, count, rate: rows[0].add_(total))
"""


@pytest.fixture
def path(shm_folder: Path) -> Path:
    return shm_folder / "shard-0"


@pytest.fixture
def shard(path: Path) -> Iterator[Shard]:
    create_shard(path, LAYOUT, 1)
    shard = Shard(path, LAYOUT, 1)
    yield shard
    shard.close()


def enter(shard: Shard, mask: int) -> int:
    """Let another learner of these ranks be there; return its slot."""
    slot = shard.members.take()
    assert slot is not None
    shard.members.enter(slot, mask)
    return slot


def run(zygote: Zygote, what: str, path: Path) -> str:
    done = zygote.run(PROGRAM, what, path)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_sums_are_in_rank_order_bit_by_bit(path, zygote):
    assert run(zygote, "bits", path) == "bits True {6.0}\n"


def test_a_killed_learner_is_not_waited_for_and_comes_back(path, zygote):
    assert run(zygote, "kills", path) == "rounds True True\n"


@pytest.mark.slow
def test_kills_tear_no_native_step_of_a_round(zygote, path):
    assert run(zygote, "native_kills", path) == "rounds True True True\n"


def take_part(rounds: Rounds, turn: Turn, mine: torch.Tensor, step: Step) -> torch.Tensor:
    seen, size = torch.empty(70_000), LAYOUT.block_count
    rounds.add(torch.split(mine, size), 0.1, step)
    rounds.finish(step, lambda row, block: seen[block * size :][: len(row)].copy_(row))
    turn.number += 1
    return seen


def test_one_learner_alone(shard):
    turn = Turn([shard], rank=0, learners=1, wait_policy=WaitPolicy(1))
    rounds = Rounds(shard, turn)
    for _ in range(2):
        seen = take_part(
            rounds, turn, torch.arange(70_000.0),
            lambda rows, total, count, _: rows[0].add_(total, alpha=count),
        )  # fmt: skip
    assert torch.equal(seen, 2 * torch.arange(70_000.0))
    assert set(shard.all_progress()) == {(2, 0)}


def test_learners_that_do_not_join_are_named(shard):
    with pytest.raises(ServerError, match=r"of 3 learners 2 have not joined .* only rank 1\n"):
        Turn([shard], rank=1, learners=3, wait_policy=WaitPolicy(0.05))
    with pytest.raises(ServerError, match="62 learners at most"):
        Turn([shard], rank=0, learners=63, wait_policy=WaitPolicy(0.05))


def test_learners_given_up_meanwhile_are_not_waited_for(shard):
    shard.expected = 2

    def give_up() -> None:
        shard.expected = 1

    timer = threading.Timer(0.05, give_up)
    timer.start()
    assert Turn([shard], rank=0, learners=2, wait_policy=WaitPolicy(10)).number == 0
    timer.join()


def test_a_returning_learner_waits_for_living_ones_only(shard):
    shard.expected = 2
    other = enter(shard, 0b10)
    Turn([shard], rank=0, learners=2, wait_policy=WaitPolicy(0))
    shard.members.pause(other)
    Turn([shard], rank=0, learners=2, wait_policy=WaitPolicy(0))


@pytest.mark.parametrize("call", ["finish", "add"])
def test_an_undone_end_of_a_round_is_not_believed(shard, call, tmp_path, zygote):
    turn = Turn([shard], rank=0, learners=1, wait_policy=WaitPolicy(1))
    enter(shard, 0b10)
    shard.update(lambda parts, block: (parts[1].fill_(1), shard.set_progress(block, 0, 0b11)))  # type: ignore[func-returns-value]
    (tmp_path / "dies.py").write_text(DIES_AT_THE_END)
    killed = zygote.run(tmp_path / "dies.py", shard.path)
    assert killed.returncode == -9 and shard.progress(0) == (1, 0)  # the round seems to have ended

    def step(rows: Sequence[torch.Tensor], total: torch.Tensor, *_: object) -> None:
        rows[0].add_(total)

    rounds, seen = Rounds(shard, turn), []
    if call == "finish":
        rounds.finish(step, lambda row, block: seen.append((block, row.eq(1).all().item())))
        assert sorted(seen) == [(0, True), (1, True)]
    else:
        turn.number = 1
        rounds.add(torch.split(torch.ones(70_000), LAYOUT.block_count), 0.1, step)
        assert shard.all_progress() == [(1, 0b01)] * 2


@contextmanager
def waiting_is_said_once(shard: Shard, end: Callable[[int], None]) -> Iterator[Warn]:
    """Yield a warn function; when it is called, `end` soon releases the late rank 0."""
    said: list[str] = []
    late = enter(shard, 0b01)

    def say(line: str) -> None:
        said.append(line)
        timer.start()

    timer = threading.Timer(0.2, end, [late])
    yield say
    timer.join()
    assert said == ["has waited for rank 0 for 0.01 s, and continues"]


def test_a_long_wait_in_a_round_warns_once(shard):
    mine = torch.split(torch.ones(70_000), LAYOUT.block_count)
    with waiting_is_said_once(shard, shard.members.pause) as say:
        turn = Turn([shard], rank=1, learners=2, wait_policy=WaitPolicy(0.01, say))
        Rounds(shard, turn).add(mine, 0.1, lambda *_: None)


def test_a_long_wait_for_the_staleness_bound_warns_once(shard):
    with waiting_is_said_once(shard, lambda late: shard.members.set_clock(late, 1)) as say:
        staleness_bound = StalenessBound(shard, 1, WaitPolicy(0.01, say))
        staleness_bound.pushed()
        staleness_bound.pushed()
        assert staleness_bound.wait() > 0.1


def test_a_learner_that_nobody_waited_for_catches_up(shard):
    """It (or its node) joined while no server knew of the others, which would all wait for it."""
    staleness_bound = StalenessBound(shard, 3, WaitPolicy(1))
    elsewhere, here = shard.members.proxy(5), shard.members.take()
    assert elsewhere is not None
    assert here is not None
    shard.members.enter(shard.slot, 0b01)
    shard.members.enter(here, 0b10)  # a second learner, which joined at the same time
    assert staleness_bound.pushes == 0
    shard.members.set_clock(elsewhere, 5000)
    assert staleness_bound.wait() == 0 and staleness_bound.pushes == 0  # nobody joined yet
    shard.members.enter(elsewhere, 0b100)
    other = threading.Timer(0.1, shard.members.set_clock, [here, 5000])
    other.start()
    staleness_bound.wait()
    other.join()
    assert staleness_bound.pushes == shard.members.clock(shard.slot) == 5000


def test_nodes_that_come_back_at_once_do_not_wait_for_each_other(shard):
    """Each hears that the other is the slowest, while the rest has continued without both."""
    staleness_bound = StalenessBound(shard, 3, WaitPolicy(1))
    shard.elsewhere, shard.furthest_elsewhere = 0, 5000
    threading.Timer(0.1, setattr, [shard, "elsewhere", 5000]).start()  # the other catches up, too
    staleness_bound.wait()
    assert staleness_bound.pushes == 5000


def test_nobody_catches_up_with_the_clock_of_nobody(shard):
    """A node's last learner left while its server looked."""
    staleness_bound = StalenessBound(shard, 3, WaitPolicy(1))
    elsewhere = shard.members.proxy(5)
    assert elsewhere is not None
    shard.members.enter(elsewhere, 0b100)
    shard.members.set_clock(elsewhere, NEVER)
    assert staleness_bound.wait() == 0 and staleness_bound.pushes == 0


@pytest.mark.parametrize("ahead", [4, 5])
def test_the_slowest_learner_keeps_its_clock(shard, ahead):
    """Learners that wait for it are at most one push beyond the bound."""
    staleness_bound = StalenessBound(shard, 3, WaitPolicy(1))
    shard.elsewhere = shard.furthest_elsewhere = ahead
    assert staleness_bound.wait() == 0
    assert staleness_bound.pushes == (ahead if ahead > 4 else 0)


@pytest.mark.parametrize("how", ["round", "staleness_bound"])
def test_a_halt_waits_for_this_node_s_learners_and_briefly_for_others(shard, how):
    here, elsewhere = shard.members.take(), shard.members.proxy(5)
    assert here is not None
    assert elsewhere is not None
    wait_policy = WaitPolicy(60, late=lambda share: share <= FOR_LEARNERS)

    def wait() -> None:
        if how == "staleness_bound":
            staleness_bound.wait()
        else:
            mine = torch.split(torch.ones(70_000), LAYOUT.block_count)
            Rounds(shard, Turn([shard], 1, 2, wait_policy)).add(mine, 0.1, lambda *_: None)

    shard.members.enter(here, 0b01)
    staleness_bound = StalenessBound(shard, 0, wait_policy)
    staleness_bound.pushed()
    threading.Timer(0.8, shard.members.remove, [here]).start()
    wait()
    shard.members.enter(elsewhere, 0b01)
    with pytest.raises(LateError, match="has waited for .* for as long as the halt leaves time"):
        wait()


def test_a_learner_that_leaves_during_a_halt_is_not_taken_for_another_node(shard, monkeypatch):
    here = enter(shard, 0b01)
    staleness_bound = StalenessBound(shard, 0, WaitPolicy(60, late=lambda _: True))
    staleness_bound.pushed()
    began, remove_dead = time.monotonic(), shard.members.remove_dead

    def leave_now() -> None:
        remove_dead()
        if time.monotonic() - began > 0.6:  # the minimum wait for other nodes
            shard.members.pause(here)

    monkeypatch.setattr(shard.members, "remove_dead", leave_now)
    assert staleness_bound.wait() > 0.5


def test_a_late_learner_begins_with_the_same_round_in_all_shards(shard, path):
    create_shard(path.with_name("shard-1"), LAYOUT, 1)
    other = Shard(path.with_name("shard-1"), LAYOUT, 1)
    shard.set_progress(0, 5, 0b10)
    other.set_progress(1, 6, 0b10)
    turn = Turn([shard, other], rank=0, learners=2, wait_policy=WaitPolicy(0))
    assert turn.number == 7
    assert [shard.members.all(), other.members.all()] == [[(1, 0, 7)]] * 2
    turn.catch_up()
    assert turn.number == 7
    other.set_progress(0, 9, 0)
    turn.catch_up()
    assert turn.number == 9
    assert [shard.members.all(), other.members.all()] == [[(1, 0, 9)]] * 2
    other.close()


@pytest.mark.parametrize("begins", [6, 0], ids=["it joins", "it returns"])
def test_a_learner_that_comes_during_a_round_takes_part_in_the_next(shard, monkeypatch, begins):
    """Just before, others end the round before, or begin the first, and the sum may be sent."""
    if begins:
        shard.set_progress(0, begins - 1, 0b10)
    else:
        shard.expected = 1  # all have joined, and one has died
    enter = shard.members.enter

    def late(slot: int, mask: int, first: int) -> None:
        if first == begins:
            shard.set_progress(0, begins, 0b10)
        enter(slot, mask, first)

    monkeypatch.setattr(shard.members, "enter", late)
    turn = Turn([shard], rank=0, learners=2, wait_policy=WaitPolicy(0))
    assert turn.number == begins + 1
    assert [member.first_round for member in shard.members.all()] == [begins + 1]


def test_a_learner_that_returns_without_its_server_keeps_the_replica_s_round(path):
    """While the node had no learners, the primary did not announce its next round."""
    layout = ShardLayout(70_000, (torch.float32, torch.float32), "model", REPLICA)
    create_shard(path, layout, 1)
    replica = Shard(path, layout, 1)
    replica.set_progress(0, 5, 0)
    replica.elsewhere = NEVER
    assert Turn([replica], rank=0, learners=2, wait_policy=WaitPolicy(0.05)).number == 5
    replica.close()


def test_the_last_learner_to_leave_ends_open_rounds(shard):
    """These learners push without a pull, and their pushes count as done."""
    others = [enter(shard, 0b010), enter(shard, 0b100)]
    pushes = InRounds([shard], ParallelSGD(), 0, 3, WaitPolicy(1))
    pushes.push(torch.ones(LAYOUT.count), None, 0.5)
    shard.members.pause(others[0])
    pushes.leave()
    assert {added for _, added in shard.all_progress()} == {0b1}  # one member may still add
    shard.members.pause(others[1])
    pushes.leave()
    assert shard.all_progress() == [(1, 0)] * LAYOUT.blocks
    assert shard.rows[0].eq(-0.5).all()


def test_a_step_that_fails_is_undone_and_can_be_taken_again(shard):
    def fail(rows: Sequence[torch.Tensor], total: torch.Tensor, *_: object) -> None:
        rows[0].fill_(7)
        total.fill_(7)
        raise ValueError("no step")

    turn = Turn([shard], rank=0, learners=1, wait_policy=WaitPolicy(1))
    rounds = Rounds(shard, turn)
    with pytest.raises(ValueError, match="no step"):
        take_part(rounds, turn, torch.ones(70_000), fail)
    assert shard.all_progress() == [(0, 0), (0, 0)]
    assert not shard.rows[0].any()
    take_part(rounds, turn, torch.ones(70_000), lambda rows, total, *_: rows[0].add_(total))
    assert shard.rows[0].eq(1).all()


def test_a_round_has_the_rate_of_its_first_learner(shard):
    enter(shard, 0b01)
    turn = Turn([shard], rank=1, learners=2, wait_policy=WaitPolicy(1))
    ones, rates = torch.ones(LAYOUT.block_count), []

    def step(rows: Sequence[torch.Tensor], total: torch.Tensor, count: int, rate: float) -> None:
        rates.append((count, rate))

    for block in range(LAYOUT.blocks):
        assert add_to_sum(
            shard, block, 0, 0b01, ones[: len(shard.rows[0]) - block * 65_536], 0.5, None
        )
    take_part(Rounds(shard, turn), turn, torch.ones(70_000), step)
    assert rates == [(2, 0.5)] * 2
