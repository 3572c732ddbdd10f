"""What comes to the shards whose home this node is, from the servers of other nodes.

Each connection has a thread, which receives a total, works on the block and sends the answer; the
kernel receives the next one meanwhile. In rounds an answer waits for others, so totals are held
until their round has ended, and the next ones are received in between.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from threading import Event
from typing import NamedTuple

import torch

from psrv.server.primary import Home
from psrv.server.primary_blocks import add_sum, copy_weights, has_ended, skip_rounds
from psrv.shard.shard import GROUP
from psrv.transport.base import (
    Connection,
    DisconnectedError,
    Frame,
    Greeting,
    Kind,
    Purpose,
    RefusedError,
)

ABSENT_S = 20.0
"""After so long without a connection to a node nobody waits for its learners any more."""
_NAP_S, _LONGEST_NAP_S = 20e-6, 1e-3
_CLOSE_S = 2.0


class Room:
    """Memory for neighbouring blocks, of so many elements each."""

    def __init__(self, elements: int, dtype: torch.dtype) -> None:
        self._all = torch.empty(GROUP * elements, dtype=dtype, device="cpu")
        self._elements = elements
        self.bytes: memoryview = self._all.numpy().data.cast("B")
        self._cuts: dict[int, tuple[Sequence[torch.Tensor], memoryview]] = {}

    def of(self, length: int) -> tuple[Sequence[torch.Tensor], memoryview]:
        """Return its first so many elements, cut into blocks, and their bytes."""
        cut = self._cuts.get(length)
        if cut is None:
            part = self._all[:length]
            parts = torch.split(part, self._elements)
            cut = self._cuts[length] = parts, part.numpy().data.cast("B")
        return cut


@dataclass
class _Held:
    """Totals of neighbouring blocks whose rounds have not all ended."""

    frame: Frame
    home: Home
    room: Room
    run: range
    added: int = 0
    """How many of them, the first ones, are in the sum."""
    ended: int = 0
    """Of how many, the first ones, the round has ended."""


class _Place(NamedTuple):
    """One of the connections that a node has here, whichever is the newest one."""

    node: int
    purpose: Purpose
    stripe: int


class _Served(NamedTuple):
    """A connection, and whether its thread has ended with it."""

    connection: Connection
    ended: Event


class Serving:
    """All homes of a node's server, and who is connected to them.

    Args:
        homes: By their shards' numbers; more may come.
        dtype: Of the rows.
        elements: Of a block.
        in_rounds: Whether the training's solver is one in rounds.
    """

    def __init__(
        self, homes: Sequence[Home], dtype: torch.dtype, elements: int, *, in_rounds: bool
    ) -> None:
        self._homes = {home.number: home for home in homes}
        self._dtype = dtype
        self._elements = elements
        # Not as the homes are: a node may become its first one when others are connected already.
        self._in_rounds = in_rounds
        self._lock = threading.Lock()
        self._connections: dict[Connection, int] = {}
        self._newest: dict[_Place, _Served] = {}
        self._gone_at: dict[int, float] = {}
        for home in homes:
            self._wait_for_nodes_of(home)
        self._lost: frozenset[int] = frozenset()
        self._closed = False

    def add(self, home: Home) -> None:
        """Become home of one more."""
        for node in self._lost:
            home.remove(node)
        self._wait_for_nodes_of(home)
        self._homes[home.number] = home

    def _wait_for_nodes_of(self, home: Home) -> None:
        """See nodes that a home knows, or waits for, as gone now: they may never come back."""
        now = time.monotonic()
        with self._lock:
            for node in {*home.shard.members.proxies(), *home.unknown()}:
                self._gone_at[node] = now

    def all(self) -> list[Home]:
        """Return all homes."""
        return list(self._homes.values())

    def serve(self, greeting: Greeting, connection: Connection) -> None:
        """Serve a connection until it ends, however.

        Raises:
            ServerError: this server can't go on.
        """
        node = greeting.node
        place, served = (
            _Place(node, greeting.purpose, greeting.stripe),
            _Served(connection, Event()),
        )
        with self._lock:
            if self._closed:
                connection.close()
                return
            self._connections[connection] = node
            before, self._newest[place] = self._newest.get(place), served
        try:
            if before is not None:
                # What it has received goes first: late, it would be taken in again.
                before.connection.close()
                before.ended.wait()
            if greeting.purpose is Purpose.CLOCKS:
                self._serve_clocks(node, connection)
            elif self._in_rounds:
                self._serve_rounds(node, connection)
            else:
                self._serve_at_once(node, connection)
        except (DisconnectedError, RefusedError):
            pass
        finally:
            connection.close()
            with self._lock:
                del self._connections[connection]
                if self._newest[place] is served:
                    del self._newest[place]
                self._gone_at[node] = time.monotonic()
            served.ended.set()

    def close(self) -> bool:
        """End all connections, and those that come; return whether all their threads have ended."""
        deadline = time.monotonic() + _CLOSE_S
        while True:
            with self._lock:
                self._closed = True
                for connection in self._connections:
                    connection.close()
                if not self._connections or time.monotonic() > deadline:
                    return not self._connections
            time.sleep(_LONGEST_NAP_S)

    def give_up(self, nodes: Iterable[int], learners_left: int) -> None:
        """Refuse what comes from these nodes from now on, and wait for them no longer.

        Args:
            nodes: All that were given up.
            learners_left: How many learners the other ones have.
        """
        self._lost = frozenset(nodes)
        with self._lock:
            for connection, node in self._connections.items():
                if node in self._lost:
                    connection.close()
        for home in self.all():
            home.expect(learners_left)
            for node in self._lost:
                home.remove(node)

    def strike_absent(self) -> list[int]:
        """Wait no longer for nodes that have been without a connection; return who they are."""
        with self._lock:
            connected = set(self._connections.values())
            long_ago = time.monotonic() - ABSENT_S
            absent = [n for n, at in self._gone_at.items() if n not in connected and at < long_ago]
            for node in absent:
                del self._gone_at[node]
        for node in absent:
            for home in self.all():
                home.pause(node)
        return absent

    def _home(self, node: int, frame: Frame) -> Home:
        if node in self._lost:
            raise RefusedError(f"node {node} was given up")
        home = self._homes.get(frame.shard)
        if home is None:
            raise DisconnectedError(f"this node is not the home of shard {frame.shard}")
        return home

    def _serve_clocks(self, node: int, connection: Connection) -> None:
        nothing = memoryview(bytearray())
        while True:
            frame = connection.receive(nothing)
            _check(frame, Kind.CLOCK, 0)
            slowest, furthest = self._home(node, frame).note_clock(node, frame)
            reply = Frame(Kind.CLOCK, frame.shard, number=slowest, pushes=furthest)
            connection.send(reply)

    def _serve_at_once(self, node: int, connection: Connection) -> None:
        totals, answers = self._room(), self._room()
        while True:
            frame = connection.receive(totals.bytes)
            home = self._home(node, frame)
            if frame.kind is Kind.PULL:
                self._answer_pull(home, frame, answers, connection)
                continue
            run, length = self._run_of(home, frame)
            answer, payload = answers.of(length)
            had = home.merge(node, frame, run, totals.of(length)[0], answer)
            connection.send(Frame(Kind.WEIGHTS, frame.shard, frame.block, had), payload)

    def _run_of(self, home: Home, frame: Frame) -> tuple[range, int]:
        """Return of which blocks totals are, and of how many elements."""
        length = frame.size // self._dtype.itemsize
        _check(frame, Kind.TOTAL, length * self._dtype.itemsize)
        return home.run_of(frame, length), length

    def _room(self) -> Room:
        return Room(self._elements, self._dtype)

    def _answer_pull(self, home: Home, frame: Frame, answer: Room, connection: Connection) -> None:
        _check(frame, Kind.PULL, 0)
        (weights,), payload = answer.of(home.length(frame.block))
        number, newer = home.weights(frame, weights)
        reply = Frame(Kind.PULLED, frame.shard, frame.block, number)
        connection.send(reply, payload if newer else None)

    def _serve_rounds(self, node: int, connection: Connection) -> None:
        held: list[_Held] = []
        free: list[Room] = []
        answer = self._room()
        nap_s = 0.0
        while True:
            if not held or connection.readable(nap_s):
                room = free.pop() if free else self._room()
                frame = connection.receive(room.bytes)
                home = self._home(node, frame)
                if frame.kind is Kind.PULL:
                    self._answer_pull(home, frame, answer, connection)
                    free.append(room)
                else:
                    run, _ = self._run_of(home, frame)
                    held.append(_Held(frame, home, room, run))
                nap_s = 0.0
            ended = [one for one in held if _advance(one, answer, connection)]
            for one in ended:
                held.remove(one)
                free.append(one.room)
            nap_s = 0.0 if ended else min(max(_NAP_S, 2 * nap_s), _LONGEST_NAP_S)


def _check(frame: Frame, kind: Kind, size: int) -> None:
    if frame.kind is not kind or frame.size != size:
        raise DisconnectedError(f"{frame.kind.name} of {frame.size} bytes came")


def _advance(held: _Held, answer: Room, connection: Connection) -> bool:
    """Add to the sums once it is its turn; send the answer once all rounds have ended.

    Block after block: who waits for a turn waits for lower ranks, and these never for higher ones.
    """
    frame, shard, solver = held.frame, held.home.shard, held.home.in_rounds
    assert solver is not None
    step, fused = solver.step, held.home.fused_rounds
    length = frame.size // shard.rows[0].element_size()
    if held.added < len(held.run) and not held.home.begun():
        return False
    totals, _ = held.room.of(length)
    for block in held.run[held.added :]:
        total = totals[block - frame.block]
        if not add_sum(shard, block, frame.number, frame.mask, total, frame.rate, step, fused):
            skip_rounds(shard, block, frame.number, step)
            return False
        held.added += 1
    for block in held.run[held.ended :]:
        if not has_ended(shard, block, frame.number + 1, step):
            return False
        held.ended += 1
    weights, payload = answer.of(length)
    rounds = copy_weights(shard, held.run, weights)
    connection.send(Frame(Kind.WEIGHTS, frame.shard, frame.block, rounds), payload)
    return True
