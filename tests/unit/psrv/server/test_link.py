"""Connections to a primary, without a network: what they send and log, and when."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from psrv.push.flow_control import Outgoing
from psrv.push.push import AtOnce
from psrv.server import link
from psrv.server.forwarder import AtOnceForwarder
from psrv.server.link import AHEAD, BlockConnection, Peer, ReconnectingConnection
from psrv.server.outbox import Outbox
from psrv.shard.format import BLOCKS_AT, REPLICA, WRITER, ShardLayout, create_shard
from psrv.shard.shard import ThreadedShard
from psrv.solvers.solver import Downpour
from psrv.transport.base import DisconnectedError, Frame, Kind, Purpose, RefusedError
from psrv.transport.tcp import Connection

STEP = 65_536
BLOCKS = 40
COUNT = BLOCKS * STEP - 100
LAYOUT = ShardLayout(COUNT, (torch.float32, torch.float32), "model", REPLICA)


class FakePrimary:
    """A connection to a primary that adds totals and answers slowly."""

    def __init__(self, answer_s: float, before: Callable[[Frame], None]) -> None:
        self.weights = torch.zeros(COUNT)
        self.asked: list[tuple[int, set[float]]] = []
        """For each PULL, the block and the weights in the answer."""
        self._answer_s = answer_s
        self._before = before
        self._answers: queue.Queue[tuple[Frame, torch.Tensor] | None] = queue.Queue()

    def send(self, frame: Frame, payload: memoryview | None = None) -> None:
        self._before(frame)
        start = frame.block * STEP
        if payload is not None:
            total = torch.frombuffer(bytearray(payload), dtype=torch.float32)
            part = self.weights[start : start + len(total)]
            part += total
            kind = Kind.WEIGHTS
        else:
            part = self.weights[start : start + STEP]
            self.asked.append((frame.block, set(part.tolist())))
            kind = Kind.PULLED
        answer = Frame(kind, frame.shard, frame.block, 1000, size=4 * len(part))
        self._answers.put((answer, part.clone()))

    def receive(self, payload: memoryview) -> Frame:
        time.sleep(self._answer_s)
        if (answer := self._answers.get()) is None:
            raise DisconnectedError("closed")
        frame, weights = answer
        payload[: frame.size] = weights.numpy().data.cast("B")
        return frame

    def readable(self, timeout_s: float) -> bool:
        return not self._answers.empty()

    def close(self) -> None:
        self._answers.put(None)


@pytest.fixture
def shard(shm_folder: Path) -> Iterator[ThreadedShard]:
    create_shard(shm_folder / "forwarder", LAYOUT, 1)
    shard = ThreadedShard(shm_folder / "forwarder", LAYOUT, 1)
    yield shard
    shard.close()


def refreshed(shard: ThreadedShard, primary: FakePrimary, ahead: int) -> bool:
    """Connect the server to a primary; return whether a refresh completes."""
    outbox = Outbox(shard.path.with_name("outbox"), BLOCKS, torch.float32)
    forwarder, failed = AtOnceForwarder(0, shard, Downpour(), outbox), list[BaseException]()
    peer = Peer("primary", lambda *_: primary, lambda _: None, failed.append)
    blocks = BlockConnection(peer, [forwarder], ahead)
    thread = threading.Thread(target=blocks.run)
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while not blocks.refreshed[0] and time.monotonic() < deadline and not failed:
            thread.join(0.01)
        assert not failed
        return blocks.refreshed[0] > 0
    finally:
        blocks.stop()
        thread.join()


def test_a_refresh_includes_all_earlier_pushes(shard):
    """Also those that wait behind totals in flight: a checkpoint counts them as done."""
    pushes, mine = AtOnce([shard], Downpour(), 0), torch.ones(COUNT)

    def before(frame: Frame) -> None:
        if frame.block == BLOCKS - 2 and not shard.refresh_wanted:  # answers are in flight
            pushes.push(mine, None, 1.0)
            shard.refresh_wanted = 1

    primary = FakePrimary(0.02, before)
    pushes.push(mine, None, 1.0)
    assert refreshed(shard, primary, BLOCKS)
    assert primary.asked == [(block, {2.0}) for block in range(BLOCKS)]
    assert shard.rows[0].eq(2).all()


def test_a_refresh_does_not_wait_for_an_undone_push(shard):
    """Its learner was killed just before its end; the connection would stall forever."""
    killed = shard.members.take()
    assert killed is not None

    def before(frame: Frame) -> None:
        if not shard.refresh_wanted:
            shard.update_block(0, lambda parts, block: shard.count_push(block))
            shard._words[BLOCKS_AT + WRITER] = killed
            shard._words[BLOCKS_AT] -= 1  # its last store is missing
            shard.refresh_wanted = 1

    shard.update_block(BLOCKS - 1, lambda parts, block: shard.count_push(block))
    assert refreshed(shard, FakePrimary(0.001, before), AHEAD)
    assert shard.progress(0) == (1000, 0)


def test_a_refresh_completes_under_constant_pushes(shard):
    pushes, mine = AtOnce([shard], Downpour(), 0), torch.ones(COUNT)
    ended = threading.Event()

    def push_on() -> None:
        while not ended.wait(0.002):
            pushes.push(mine, None, 1.0)

    learner = threading.Thread(target=push_on)
    learner.start()
    try:
        shard.refresh_wanted = 1
        assert refreshed(shard, FakePrimary(0.001, lambda _: None), AHEAD)
    finally:
        ended.set()
        learner.join()


def test_a_leaving_learner_does_not_wait_for_others_pushes(shard):
    outbox = Outbox(shard.path.with_name("outbox"), BLOCKS, torch.float32)
    forwarder = AtOnceForwarder(0, shard, Downpour(), outbox)
    pushes, mine = AtOnce([shard], Downpour(), 0), torch.ones(COUNT)

    def carry() -> list[Frame]:
        sendings = [forwarder.take(group) for group in forwarder.ready()]
        return [sending[0] for sending in sendings if sending is not None]

    def answer(frames: list[Frame]) -> None:
        for frame in frames:
            count = min(2 * STEP, COUNT - frame.block * STEP)
            forwarder.give(Frame(Kind.WEIGHTS, 0, frame.block, 7), torch.zeros(count))

    assert Outgoing([shard]).has_come()
    pushes.push(mine, None, 1.0)
    first = carry()
    unanswered = Outgoing([shard])
    pushes.push(mine, None, 1.0)
    behind = Outgoing([shard])
    assert not unanswered.has_come()
    answer(first)
    assert unanswered.has_come() and not behind.has_come()
    second = carry()
    pushes.push(mine, None, 1.0)
    assert not behind.has_come()
    answer(second)
    assert behind.has_come() and shard.all_added().all()


class Played(ReconnectingConnection):
    """Attempts, each some seconds after the last one, with an error or None if it connects."""

    def __init__(self, attempts: list[tuple[float, Exception | None]], lasts_s: float) -> None:
        self.now = 100.0
        self._lasts_s = lasts_s
        self.lines: list[str] = []
        self._attempts = attempts
        peer = Peer("primary", self._next, self.lines.append, self.lines.append)
        super().__init__(peer, "clocks", Purpose.CLOCKS)

    def _next(self, purpose: Purpose) -> Connection:
        if not self._attempts:
            self.stop()
            raise DisconnectedError("stopped")
        passed_s, error = self._attempts.pop(0)
        self.now += passed_s
        if error is not None:
            raise error
        return None  # type: ignore[return-value]

    def use(self, connection: Connection) -> None:
        self.now += self._lasts_s
        raise DisconnectedError("the other side ended the connection")


@pytest.mark.parametrize(
    ("attempts", "lines"),
    [
        ([(0, None), (1, DisconnectedError("no server answers")), (0.5, None)], ["connected"]),
        (
            [(0, None), (1, DisconnectedError("no server answers")),
             (1.5, DisconnectedError("no server answers")), (9, None)],
            ["connected", "no server answers", "connected"],
        ),
        ([(0, None), (0, RefusedError("node 1 was given up"))],
         ["connected", "node 1 was given up"]),
    ],
)  # fmt: skip
def test_a_short_outage_is_not_logged(monkeypatch, attempts, lines):
    """At the end of a training servers leave one by one: logging that would suggest a failure."""
    played = Played(attempts, lasts_s=5)
    monkeypatch.setattr(link.time, "monotonic", lambda: played.now)
    played.run()
    assert played.lines == [f"primary, clocks: {line}" for line in lines]


def test_a_flapping_connection_is_logged(monkeypatch):
    played = Played([(0.5, None)] * 6, lasts_s=0.5)
    monkeypatch.setattr(link.time, "monotonic", lambda: played.now)
    played.run()
    assert played.lines[:3] == [
        "primary, clocks: connected",
        "primary, clocks: the other side ended the connection",
        "primary, clocks: connected",
    ]  # fmt: skip
