"""One node's connections to the primary of some of its shards: totals go there, weights come back.

The connection for blocks has two threads: one sends what forwarders have ready, up to a limit of
unanswered blocks; the other receives the answers. A connection that ends reconnects for as long as
the node is the primary of these shards, and what had no answer is sent again. One more connection
carries clocks.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from psrv.push.waiting import naps
from psrv.server.forwarder import Forwarder, local_clock
from psrv.shard.format import BLOCK_BYTES
from psrv.shard.shard import GROUP
from psrv.transport.base import DisconnectedError, Frame, Kind, Purpose, RefusedError
from psrv.transport.tcp import Connection

_DIAL_AGAIN_S, _LONGEST_DIAL_S = 0.05, 1.0
_LASTING_S = 2.0
"""An outage shorter than this is not logged. Neither are servers that end at the same time, one of
which sees the end of the training first."""
AHEAD = 16
"""Most unanswered blocks to one primary."""
_NAPS_S, _IDLE_NAP_S = (100e-6, 1e-3), 5e-3
_IDLE_S = 1.0
"""After this long without a push, the pauses between polls are the longest."""
_REFRESH_EVERY_S = 4.0
"""How often an idle forwarder asks for newer weights."""
_CLOCK_EVERY_S, _SLOW_CLOCK_EVERY_S = 0.01, 0.2


@dataclass(frozen=True)
class Peer:
    """A server on another node, as the connections to it see it."""

    name: str
    """For the log."""
    dial: Callable[[Purpose], Connection]
    log: Callable[[str], None]
    """Gets a line for each change."""
    fail: Callable[[BaseException], None]
    """Gets an error that must end this server."""


class ReconnectingConnection(ABC):
    """A connection that reconnects whenever it ends; a subclass says what it carries."""

    def __init__(self, peer: Peer, label: str, purpose: Purpose) -> None:
        self._peer = peer
        self._name = f"{peer.name}, {label}"
        self._purpose = purpose
        self._last_line = ""
        self._stopped = threading.Event()
        self._connection: Connection | None = None
        self._lock = threading.Lock()

    def run(self) -> None:
        """Keep the connection open, and run `use` on it, until `stop`."""
        naps_s = naps(_DIAL_AGAIN_S, _LONGEST_DIAL_S)
        without_since: float | None = None
        while not self._stopped.is_set():
            opened_at = float("inf")
            try:
                connection = self._open()
                opened_at = time.monotonic()
                self._say("connected")
                self.use(connection)
            except (DisconnectedError, RefusedError) as error:
                now = time.monotonic()
                if now - opened_at >= _LASTING_S:  # it has lasted, and does not flap
                    naps_s, without_since = naps(_DIAL_AGAIN_S, _LONGEST_DIAL_S), None
                without_since = without_since or now
                long = now - without_since >= _LASTING_S or isinstance(error, RefusedError)
                if long and not self._stopped.is_set():
                    self._say(error.message)
            finally:
                self._close()
            self._stopped.wait(next(naps_s))

    def stop(self) -> None:
        """End `run` soon."""
        self._stopped.set()
        with self._lock:
            if self._connection is not None:
                self._connection.close()

    def _open(self) -> Connection:
        connection = self._peer.dial(self._purpose)
        with self._lock:
            self._connection = connection
        if self._stopped.is_set():
            raise DisconnectedError("this server has closed the connection")
        return connection

    def _close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    def _say(self, what: str) -> None:
        """Log a line unless it repeats the last one."""
        if what != self._last_line:
            self._last_line = what
            self._peer.log(f"{self._name}: {what}")

    @abstractmethod
    def use(self, connection: Connection) -> None:
        """Work on an open connection until DisconnectedError, or until stopped."""


class BlockConnection(ReconnectingConnection):
    """The connection for blocks.

    Args:
        peer: The primary's server.
        forwarders: All whose primary is at the other end.
        ahead: Blocks that may be sent without an answer.
    """

    def __init__(self, peer: Peer, forwarders: Sequence[Forwarder], ahead: int) -> None:
        super().__init__(peer, "blocks", Purpose.EXCHANGE)
        self._forwarders = {forwarder.number: forwarder for forwarder in forwarders}
        self._ahead = ahead
        self._answered = threading.Condition()
        self._answer_bytes: dict[tuple[Kind, int, int], int] = {}
        """Bytes of each answer that is still to come, by its kind, shard and first block."""
        self._waited_for = 0
        """Bytes of all answers that are still to come."""
        self._broken = False
        self._pulls: dict[int, int] = {}
        """For each shard, how many pulls have no answer yet."""
        self.refreshed = dict.fromkeys(self._forwarders, 0)
        """For each shard, the last refresh that is complete for all blocks."""

    def use(self, connection: Connection) -> None:
        """Send, while another thread receives."""
        self._answer_bytes, self._waited_for, self._broken = {}, 0, False
        self._pulls = dict.fromkeys(self._forwarders, 0)
        receiver = threading.Thread(
            target=self._receive, args=(connection,), name=f"{self._name}, answers", daemon=True
        )
        receiver.start()
        try:
            self._send_all(connection)
        finally:
            connection.close()
            receiver.join()

    def _send_all(self, connection: Connection) -> None:
        for forwarder in self._forwarders.values():
            for frame, payload in forwarder.unanswered():
                self._send(connection, frame, payload)
        naps_s, sent_at = naps(*_NAPS_S), time.monotonic()
        busy_at = dict.fromkeys(self._forwarders, sent_at)
        while not self._is_over():
            sent = 0
            for number, forwarder in self._forwarders.items():
                if count := self._send_ready(connection, forwarder):
                    busy_at[number] = time.monotonic()
                # A refresh that is wanted comes even if there is always something to send.
                if self._refresh(connection, forwarder, busy_at[number]):
                    busy_at[number] = time.monotonic()
                sent += count
            if sent:
                naps_s, sent_at = naps(*_NAPS_S), time.monotonic()
            else:
                idle = time.monotonic() > sent_at + _IDLE_S
                time.sleep(_IDLE_NAP_S if idle else next(naps_s))

    def _send_ready(self, connection: Connection, forwarder: Forwarder) -> int:
        ready = forwarder.ready()
        for group in ready:
            if not self._wait_for_answers():
                break
            if (sending := forwarder.take(group)) is not None:
                self._send(connection, *sending)
        return len(ready)

    def _wait_for_answers(self) -> bool:
        """Wait until little enough is unanswered; return False if the connection has ended."""
        ahead_bytes = self._ahead * BLOCK_BYTES
        with self._answered:
            self._answered.wait_for(lambda: self._waited_for < ahead_bytes or self._is_over())
            return not self._is_over()

    def _is_over(self) -> bool:
        return self._broken or self._stopped.is_set()

    def _send(self, connection: Connection, frame: Frame, payload: memoryview | None) -> None:
        kind, size = Kind.PULLED, BLOCK_BYTES
        if payload is not None:
            kind, size = Kind.WEIGHTS, payload.nbytes
        with self._answered:
            self._answer_bytes[kind, frame.shard, frame.block] = size
            self._waited_for += size
        connection.send(frame, payload)

    def _refresh(self, connection: Connection, forwarder: Forwarder, busy_at: float) -> bool:
        """Ask for newer weights if a learner wants a refresh, or if the forwarder is idle."""
        number, wanted = forwarder.number, forwarder.wanted
        idle = forwarder.is_behind or time.monotonic() > busy_at + _REFRESH_EVERY_S
        if wanted <= self.refreshed[number] and not idle:
            return False
        with self._answered:
            self._pulls[number] += 1
        groups = range(len(forwarder.shard.groups))
        if not all(self._send_gathered(connection, forwarder, group) for group in groups):
            return True
        for block in range(forwarder.shard.layout.blocks):
            if not self._wait_for_answers():
                return True
            with self._answered:
                self._pulls[number] += 1
            self._send(connection, forwarder.pull(block), None)
        self._end_pull(number, wanted)
        return True

    def _send_gathered(self, connection: Connection, forwarder: Forwarder, group: int) -> bool:
        """Send what a group has gathered by now: a refresh that a learner wants has to include it.

        What has gathered behind an unanswered total is sent after that answer.

        Returns:
            False if the connection has ended.
        """
        left = forwarder.gathered(group)
        while left := left & forwarder.gathered(group):  # a killed learner's push may be undone
            with self._answered:
                self._answered.wait_for(lambda: not forwarder.waits(group) or self._is_over())
            if not self._wait_for_answers():
                return False
            if (sending := forwarder.take(group)) is not None:
                self._send(connection, *sending)
                left -= set(forwarder.run_of(*sending))
        return True

    def _end_pull(self, number: int, wanted: int) -> None:
        """Note a refresh once its last answer has come."""
        with self._answered:
            self._pulls[number] -= 1
            self._answered.wait_for(lambda: not self._pulls[number] or self._broken)
            if not self._broken:
                self.refreshed[number] = max(wanted, self.refreshed[number])

    def _receive(self, connection: Connection) -> None:
        """Give the answers to the forwarders."""
        first = next(iter(self._forwarders.values())).shard
        buffer = torch.empty(
            GROUP * first.layout.block_count, dtype=first.rows[0].dtype, device="cpu"
        )
        into = buffer.numpy().data.cast("B")
        try:
            while True:
                self._accept(connection.receive(into), buffer)
        except DisconnectedError as error:
            if not self._stopped.is_set():
                self._say(error.message)
        except BaseException as error:
            self._peer.fail(error)
        finally:
            with self._answered:
                self._broken = True
                self._answered.notify_all()

    def _accept(self, frame: Frame, buffer: torch.Tensor) -> None:
        # Before the forwarder has it: from then on it may send the same blocks again.
        expected = self._answer_bytes.pop((frame.kind, frame.shard, frame.block), None)
        pulled = frame.kind is Kind.PULLED
        if expected is None or not (frame.size == expected or (pulled and frame.size < expected)):
            raise DisconnectedError(
                f"received a {frame.kind.name} of {frame.size} bytes for block {frame.block} of "
                f"shard {frame.shard}, which was not asked for"
            )
        forwarder, weights = (
            self._forwarders[frame.shard],
            buffer[: frame.size // buffer.element_size()],
        )
        if not pulled:
            forwarder.give(frame, weights)
        elif frame.size:  # the weights are newer
            forwarder.pulled(frame, weights)
        with self._answered:
            self._waited_for -= expected
            self._pulls[frame.shard] -= pulled
            self._answered.notify()


class Clocks(ReconnectingConnection):
    """The connection for clocks: which learners of this node live, and how far the others are."""

    def __init__(self, peer: Peer, forwarders: Sequence[Forwarder], frequent: bool) -> None:
        super().__init__(peer, "clocks", Purpose.CLOCKS)
        self._forwarders = {forwarder.number: forwarder for forwarder in forwarders}
        self._every_s = _CLOCK_EVERY_S if frequent else _SLOW_CLOCK_EVERY_S

    def use(self, connection: Connection) -> None:
        """Exchange clocks whenever something changes here, and at regular intervals."""
        last_sent: dict[int, tuple[int, int, int]] = {}
        """For each shard, the last mask of living ranks, clock, and wanted refresh."""
        due = 0.0
        while not self._stopped.is_set():
            again = time.monotonic() > due
            for number, forwarder in self._forwarders.items():
                wanted, (mask, clock, behind) = (
                    forwarder.shard.refresh_wanted,
                    local_clock(forwarder),
                )
                if again or last_sent.get(number) != (mask, clock, wanted):
                    last_sent[number] = mask, clock, wanted
                    frame = Frame(Kind.CLOCK, number, number=clock, mask=mask, pushes=behind)
                    self._exchange(connection, forwarder, frame)
                    forwarder.announced = wanted
            if again:
                due = time.monotonic() + self._every_s
            self._stopped.wait(_CLOCK_EVERY_S)

    def _exchange(self, connection: Connection, forwarder: Forwarder, frame: Frame) -> None:
        connection.send(frame)
        frame = connection.receive(memoryview(bytearray()))
        if frame.kind is not Kind.CLOCK or frame.shard != forwarder.number:
            raise DisconnectedError(f"received a {frame.kind.name} as the answer to a clock")
        forwarder.shard.elsewhere, forwarder.shard.furthest_elsewhere = frame.number, frame.pushes


class Link:
    """Both connections to one primary.

    Args:
        peer: The primary's server.
        forwarders: Those of the shards whose primary it is.
        ahead: Blocks that may be without an answer; see AHEAD.
        frequent_clocks: Whether learners wait for one another's clocks.
    """

    def __init__(
        self, peer: Peer, forwarders: Sequence[Forwarder], *, ahead: int, frequent_clocks: bool
    ) -> None:
        self._peer = peer
        self._forwarders = list(forwarders)
        self._blocks = BlockConnection(peer, forwarders, ahead)
        self._ends: list[ReconnectingConnection] = [
            self._blocks,
            Clocks(peer, forwarders, frequent_clocks),
        ]
        self._threads = [
            threading.Thread(target=self._run, args=(end,), name=peer.name, daemon=True)
            for end in self._ends
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, end: ReconnectingConnection) -> None:
        try:
            end.run()
        except BaseException as error:
            self._peer.fail(error)

    def note_refreshes(self) -> None:
        """Publish which refreshes are complete."""
        for forwarder in self._forwarders:
            done = self._blocks.refreshed[forwarder.number]
            if done > forwarder.shard.refreshed:
                forwarder.shard.refreshed = done

    def close(self) -> None:
        """Close both connections and end their threads; the outbox keeps what has no answer."""
        for end in self._ends:
            end.stop()
        for thread in self._threads:
            thread.join()
