"""One node's connections to the home of some of its shards: totals there, weights back.

Groups of blocks are striped over the connections, if there are several. Each has two threads: one
sends what relays have ready, up to so many blocks ahead of the answers; the other receives the
answers. A connection that ends is opened again, for as long as the node is the home of these
shards, and what had no answer is sent again. One connection more carries clocks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import torch

from psrv.server.forwarder import Relay, own_clock
from psrv.server.reconnect import Dial, Lasting
from psrv.shard.format import BLOCK_BYTES
from psrv.shard.shard import GROUP
from psrv.transport.base import Connection, DisconnectedError, Frame, Kind, Purpose

MOST_STRIPES = 2
"""Connections for blocks to one home."""
AHEAD = 16
"""Blocks to one home that may be without an answer, before more is sent."""
_NAP_S, _LONGEST_NAP_S, _IDLE_NAP_S = 100e-6, 1e-3, 5e-3
_IDLE_S = 1.0
"""After so long without a push pauses are the longest."""
_REFRESH_EVERY_S = 4.0
"""So often an idle relay asks for newer weights."""
_CLOCK_EVERY_S, _SLOW_CLOCK_EVERY_S = 0.01, 0.2


def stripes_for(cores: int) -> int:
    """Return how many connections for blocks a server opens to a home.

    Each has threads at both ends that want a core each. On two cores, which learners use, too, an
    update with two took 1.4 times the time of one (docs/benchmarks.md).
    """
    return min(MOST_STRIPES, max(1, cores // 2))


class Stripe(Lasting):
    """One of the connections for blocks.

    Args:
        relays: All whose home is at the other end.
        stripe: This one's number of `stripes`.
        ahead: Blocks of this one that may be without an answer.
        fail: Gets what must end the server.
    """

    def __init__(
        self,
        relays: Sequence[Relay],
        dial: Dial,
        stripe: int,
        stripes: int,
        ahead: int,
        name: str,
        log: Callable[[str], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        super().__init__(f"{name}, connection {stripe}", dial, Purpose.EXCHANGE, stripe, log)
        self._relays = {relay.number: relay for relay in relays}
        self._groups = {
            relay.number: range(stripe, len(relay.shard.groups), stripes) for relay in relays
        }
        self._ahead = ahead
        self._fail = fail
        self._answered = threading.Condition()
        self._asked: dict[tuple[Kind, int, int], int] = {}
        """Bytes of the answer that is still to come, by its kind, shard and first block."""
        self._waited_for = 0
        """Bytes of all answers that are still to come."""
        self._broken = False
        self._pulls: dict[int, int] = {}
        """Of each shard, how many of its pulls are without an answer."""
        self.refreshed = dict.fromkeys(self._relays, 0)
        """Of each shard, which refresh all blocks of this stripe have behind them."""

    def use(self, connection: Connection) -> None:
        """Send, while another thread receives."""
        self._asked, self._waited_for, self._broken = {}, 0, False
        self._pulls = dict.fromkeys(self._relays, 0)
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
        for number, relay in self._relays.items():
            for frame, payload in relay.on_its_way(self._groups[number]):
                self._send(connection, frame, payload)
        nap_s, sent_at = _NAP_S, time.monotonic()
        busy_at = dict.fromkeys(self._relays, sent_at)
        while not self._is_over():
            sent = 0
            for number, relay in self._relays.items():
                if count := self._send_ready(connection, relay):
                    busy_at[number] = time.monotonic()
                # Wanted ones however much there is to send: that may never end.
                if self._refresh(connection, relay, busy_at[number]):
                    busy_at[number] = time.monotonic()
                sent += count
            if sent:
                nap_s, sent_at = _NAP_S, time.monotonic()
            else:
                time.sleep(nap_s)
                idle = time.monotonic() > sent_at + _IDLE_S
                nap_s = min(2 * nap_s, _IDLE_NAP_S if idle else _LONGEST_NAP_S)

    def _send_ready(self, connection: Connection, relay: Relay) -> int:
        ready = [group for group in relay.ready() if group in self._groups[relay.number]]
        for group in ready:
            if not self._wait_for_room():
                break
            if (sending := relay.take(group)) is not None:
                self._send(connection, *sending)
        return len(ready)

    def _wait_for_room(self) -> bool:
        """Wait until not too much is without an answer; return False when it is all over."""
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
            self._asked[kind, frame.shard, frame.block] = size
            self._waited_for += size
        connection.send(frame, payload)

    def _refresh(self, connection: Connection, relay: Relay, busy_at: float) -> bool:
        """Ask for newer weights if a learner wants them, or if nothing has come for long."""
        number, wanted = relay.number, relay.wanted
        idle = relay.is_behind or time.monotonic() > busy_at + _REFRESH_EVERY_S
        if wanted <= self.refreshed[number] and not idle:
            return False
        with self._answered:
            self._pulls[number] += 1
        if not all(self._send_gathered(connection, relay, n) for n in self._groups[number]):
            return True
        for block in (b for group in self._groups[number] for b in relay.shard.groups[group]):
            if not self._wait_for_room():
                return True
            with self._answered:
                self._pulls[number] += 1
            self._send(connection, relay.pull(block), None)
        self._end_pull(number, wanted)
        return True

    def _send_gathered(self, connection: Connection, relay: Relay, group: int) -> bool:
        """Send what a group has gathered by now: who wants a refresh wants it in there.

        What has gathered behind a total on its way goes after its answer. Returns False when it is
        all over.
        """
        left = relay.gathered(group)
        while left := left & relay.gathered(group):  # who pushed may have been killed: undone
            with self._answered:
                self._answered.wait_for(lambda: not relay.waits(group) or self._is_over())
            if not self._wait_for_room():
                return False
            if (sending := relay.take(group)) is not None:
                self._send(connection, *sending)
                left -= set(relay.run_of(*sending))
        return True

    def _end_pull(self, number: int, wanted: int) -> None:
        """Note a refresh once its last answer has come."""
        with self._answered:
            self._pulls[number] -= 1
            self._answered.wait_for(lambda: not self._pulls[number] or self._broken)
            if not self._broken:
                self.refreshed[number] = max(wanted, self.refreshed[number])

    def _receive(self, connection: Connection) -> None:
        """Give the answers to the relays."""
        first = next(iter(self._relays.values())).shard
        room = torch.empty(
            GROUP * first.layout.block_count, dtype=first.rows[0].dtype, device="cpu"
        )
        into = room.numpy().data.cast("B")
        try:
            while True:
                self._take_in(connection.receive(into), room)
        except DisconnectedError as error:
            if not self._stopped.is_set():
                self._say(error.message)
        except BaseException as error:
            self._fail(error)
        finally:
            with self._answered:
                self._broken = True
                self._answered.notify_all()

    def _take_in(self, frame: Frame, room: torch.Tensor) -> None:
        # Before the relay has it: from then on the same blocks may be sent again.
        asked = self._asked.pop((frame.kind, frame.shard, frame.block), None)
        pulled = frame.kind is Kind.PULLED
        if asked is None or not (frame.size == asked or (pulled and frame.size < asked)):
            raise DisconnectedError(
                f"{frame.kind.name} of {frame.size} bytes came for block {frame.block} of "
                f"{frame.shard}, which nobody has asked for"
            )
        relay, weights = self._relays[frame.shard], room[: frame.size // room.element_size()]
        if not pulled:
            relay.give(frame, weights)
        elif frame.size:  # there are newer ones
            relay.pulled(frame, weights)
        with self._answered:
            self._waited_for -= asked
            self._pulls[frame.shard] -= pulled
            self._answered.notify()


class Clocks(Lasting):
    """The connection for clocks: who lives on this node, and how far the others are."""

    def __init__(
        self,
        relays: Sequence[Relay],
        dial: Dial,
        often: bool,
        name: str,
        log: Callable[[str], None],
    ) -> None:
        super().__init__(f"{name}, clocks", dial, Purpose.CLOCKS, 0, log)
        self._relays = {relay.number: relay for relay in relays}
        self._every_s = _CLOCK_EVERY_S if often else _SLOW_CLOCK_EVERY_S

    def use(self, connection: Connection) -> None:
        """Tell and ask, when something is new here and every so often."""
        told: dict[int, tuple[int, int, int]] = {}
        """Of each shard, who lived, their clock, and which refresh was wanted."""
        due = 0.0
        while not self._stopped.is_set():
            again = time.monotonic() > due
            for number, relay in self._relays.items():
                wanted, (mask, clock, behind) = relay.shard.refresh_wanted, own_clock(relay)
                if again or told.get(number) != (mask, clock, wanted):
                    told[number] = mask, clock, wanted
                    frame = Frame(Kind.CLOCK, number, number=clock, mask=mask, pushes=behind)
                    self._exchange(connection, relay, frame)
                    relay.announced = wanted
            if again:
                due = time.monotonic() + self._every_s
            self._stopped.wait(_CLOCK_EVERY_S)

    def _exchange(self, connection: Connection, relay: Relay, frame: Frame) -> None:
        connection.send(frame)
        frame = connection.receive(memoryview(bytearray()))
        if frame.kind is not Kind.CLOCK or frame.shard != relay.number:
            raise DisconnectedError(f"{frame.kind.name} came as an answer to a clock")
        relay.shard.elsewhere, relay.shard.furthest_elsewhere = frame.number, frame.pushes


class Link:
    """All connections to one home.

    Args:
        name: Of the home, for the log.
        relays: Of the shards whose home it is.
        dial: Opens a connection.
        often: Whether learners wait for one another's clocks.
        stripes: How many connections for blocks.
        ahead: Blocks that may be without an answer; see AHEAD.
        log: Gets a line for each thing that is new.
        fail: Gets what must end the server.
    """

    def __init__(
        self,
        name: str,
        relays: Sequence[Relay],
        dial: Dial,
        *,
        often: bool,
        stripes: int,
        ahead: int,
        log: Callable[[str], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._relays = list(relays)
        self._stripes = [
            Stripe(relays, dial, stripe, stripes, ahead // stripes, name, log, fail)
            for stripe in range(stripes)
        ]
        ends: list[Lasting] = [*self._stripes, Clocks(relays, dial, often, name, log)]
        self._ends = ends
        self._fail = fail
        self._threads = [
            threading.Thread(target=self._run, args=(end,), name=name, daemon=True) for end in ends
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, end: Lasting) -> None:
        try:
            end.run()
        except BaseException as error:
            self._fail(error)

    def note_refreshes(self) -> None:
        """Tell learners which refreshes are done, by all connections."""
        for relay in self._relays:
            done = min(stripe.refreshed[relay.number] for stripe in self._stripes)
            if done > relay.shard.refreshed:
                relay.shard.refreshed = done

    def close(self) -> None:
        """End all connections and threads; what has no answer stays kept."""
        for end in self._ends:
            end.stop()
        for thread in self._threads:
            thread.join()
