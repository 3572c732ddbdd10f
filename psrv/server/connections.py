"""Serves the connections of other nodes' servers to the primaries of this node.

Each connection has a thread that receives a total, works on the blocks and sends the answer, while
the kernel receives the next total. In rounds an answer depends on other nodes, so totals are held
until their round has ended, and the next ones are received in between.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from threading import Event
from typing import NamedTuple

import torch

from psrv.push.waiting import SHORT_NAPS_S, naps
from psrv.server.primary import Primary, add_sum, copy_weights, has_ended, skip_rounds
from psrv.shard.shard import GROUP
from psrv.transport.base import DisconnectedError, Frame, Greeting, Kind, Purpose, RefusedError
from psrv.transport.tcp import Connection

ABSENT_S = 20.0
"""After this long without a connection to a node, nobody waits for its learners any more."""
_CLOSE_S, _NAP_S = 2.0, 1e-3


class BlockBuffer:
    """A buffer for a group of neighbouring blocks, each of the given number of elements."""

    def __init__(self, elements: int, dtype: torch.dtype) -> None:
        self._all = torch.empty(GROUP * elements, dtype=dtype, device="cpu")
        self._elements = elements
        self.bytes: memoryview = self._all.numpy().data.cast("B")
        self._cuts: dict[int, tuple[Sequence[torch.Tensor], memoryview]] = {}

    def of(self, length: int) -> tuple[Sequence[torch.Tensor], memoryview]:
        """Return the first `length` elements, cut into blocks, and their bytes."""
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
    primary: Primary
    buffer: BlockBuffer
    run: range
    added: int = 0
    """How many of the blocks, from the first on, were added to the sum."""
    ended: int = 0
    """In how many of the blocks, from the first on, the round has ended."""


class _Handler(NamedTuple):
    """A connection, and whether the thread that serves it has ended."""

    connection: Connection
    ended: Event


class PeerConnections:
    """All connections from other nodes to the primaries of this node.

    Args:
        primaries: More may be added later.
        dtype: The rows'.
        elements: In a block.
        in_rounds: Whether the training's solver works in rounds.
    """

    def __init__(
        self, primaries: Sequence[Primary], dtype: torch.dtype, elements: int, *, in_rounds: bool
    ) -> None:
        self._primaries = {primary.number: primary for primary in primaries}
        self._dtype = dtype
        self._elements = elements
        # Not taken from a primary: this node may get its first one when others are connected
        # already.
        self._in_rounds = in_rounds
        self._lock = threading.Lock()
        self._connections: dict[Connection, int] = {}
        self._newest: dict[tuple[int, Purpose], _Handler] = {}
        """By the other node and the connection's purpose."""
        self._disconnected_at: dict[int, float] = {}
        for primary in primaries:
            self._wait_for_nodes_of(primary)
        self._lost: frozenset[int] = frozenset()
        self._closed = False

    def add(self, primary: Primary) -> None:
        """Serve one more primary."""
        for node in self._lost:
            primary.remove(node)
        self._wait_for_nodes_of(primary)
        self._primaries[primary.number] = primary

    def _wait_for_nodes_of(self, primary: Primary) -> None:
        """Count a primary's known and expected nodes as disconnected: they may never connect."""
        now = time.monotonic()
        with self._lock:
            for node in {*primary.shard.members.proxies(), *primary.unknown_nodes()}:
                self._disconnected_at[node] = now

    def all(self) -> list[Primary]:
        """Return all primaries."""
        return list(self._primaries.values())

    def serve(self, greeting: Greeting, connection: Connection) -> None:
        """Serve a connection until it ends, for whatever reason.

        Raises:
            ServerError: This server can't continue.
        """
        node, handler = greeting.node, _Handler(connection, Event())
        channel = node, greeting.purpose
        with self._lock:
            if self._closed:
                connection.close()
                return
            self._connections[connection] = node
            before, self._newest[channel] = self._newest.get(channel), handler
        try:
            if before is not None:
                # What the old connection has received goes first: later it would be applied again.
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
                if self._newest[channel] is handler:
                    del self._newest[channel]
                self._disconnected_at[node] = time.monotonic()
            handler.ended.set()

    def close(self) -> bool:
        """Close all connections, now and later; return whether all their threads have ended."""
        deadline = time.monotonic() + _CLOSE_S
        while True:
            with self._lock:
                self._closed = True
                for connection in self._connections:
                    connection.close()
                if not self._connections or time.monotonic() > deadline:
                    return not self._connections
            time.sleep(_NAP_S)

    def give_up(self, nodes: Iterable[int], learners_left: int) -> None:
        """Refuse these nodes from now on, and stop waiting for them.

        Args:
            nodes: All nodes that were given up.
            learners_left: How many learners the other nodes have.
        """
        self._lost = frozenset(nodes)
        with self._lock:
            for connection, node in self._connections.items():
                if node in self._lost:
                    connection.close()
        for primary in self.all():
            primary.shard.expect(learners_left)
            for node in self._lost:
                primary.remove(node)

    def pause_absent(self) -> list[int]:
        """Stop waiting for nodes that have long been without a connection; return their numbers."""
        with self._lock:
            connected = set(self._connections.values())
            long_ago = time.monotonic() - ABSENT_S
            absent = [
                n for n, at in self._disconnected_at.items() if n not in connected and at < long_ago
            ]
            for node in absent:
                del self._disconnected_at[node]
        for node in absent:
            for primary in self.all():
                primary.pause(node)
        return absent

    def _primary(self, node: int, frame: Frame) -> Primary:
        if node in self._lost:
            raise RefusedError(f"node {node} was given up")
        primary = self._primaries.get(frame.shard)
        if primary is None:
            raise DisconnectedError(f"this node is not the primary of shard {frame.shard}")
        return primary

    def _serve_clocks(self, node: int, connection: Connection) -> None:
        nothing = memoryview(bytearray())
        while True:
            frame = connection.receive(nothing)
            _check(frame, Kind.CLOCK, 0)
            slowest, furthest = self._primary(node, frame).note_clock(node, frame)
            reply = Frame(Kind.CLOCK, frame.shard, number=slowest, pushes=furthest)
            connection.send(reply)

    def _serve_at_once(self, node: int, connection: Connection) -> None:
        totals, answers = self._new_buffer(), self._new_buffer()
        while True:
            frame = connection.receive(totals.bytes)
            primary = self._primary(node, frame)
            if frame.kind is Kind.PULL:
                self._answer_pull(primary, frame, answers, connection)
                continue
            run, length = self._run_of(primary, frame)
            answer, payload = answers.of(length)
            had = primary.merge(node, frame, run, totals.of(length)[0], answer)
            connection.send(Frame(Kind.WEIGHTS, frame.shard, frame.block, had), payload)

    def _run_of(self, primary: Primary, frame: Frame) -> tuple[range, int]:
        """Return which blocks a frame's totals belong to, and how many elements they have."""
        length = frame.size // self._dtype.itemsize
        _check(frame, Kind.TOTAL, length * self._dtype.itemsize)
        return primary.run_of(frame, length), length

    def _new_buffer(self) -> BlockBuffer:
        return BlockBuffer(self._elements, self._dtype)

    def _answer_pull(
        self, primary: Primary, frame: Frame, answer: BlockBuffer, connection: Connection
    ) -> None:
        _check(frame, Kind.PULL, 0)
        (weights,), payload = answer.of(primary.length(frame.block))
        number, newer = primary.weights(frame, weights)
        reply = Frame(Kind.PULLED, frame.shard, frame.block, number)
        connection.send(reply, payload if newer else None)

    def _serve_rounds(self, node: int, connection: Connection) -> None:
        held: list[_Held] = []
        free: list[BlockBuffer] = []
        answer = self._new_buffer()
        naps_s = chain([0.0], naps(*SHORT_NAPS_S))
        while True:
            if not held or connection.readable(next(naps_s)):
                buffer = free.pop() if free else self._new_buffer()
                frame = connection.receive(buffer.bytes)
                primary = self._primary(node, frame)
                if frame.kind is Kind.PULL:
                    self._answer_pull(primary, frame, answer, connection)
                    free.append(buffer)
                else:
                    run, _ = self._run_of(primary, frame)
                    held.append(_Held(frame, primary, buffer, run))
                naps_s = chain([0.0], naps(*SHORT_NAPS_S))
            ended = [one for one in held if _advance(one, answer, connection)]
            for one in ended:
                held.remove(one)
                free.append(one.buffer)
            if ended:
                naps_s = chain([0.0], naps(*SHORT_NAPS_S))


def _check(frame: Frame, kind: Kind, size: int) -> None:
    if frame.kind is not kind or frame.size != size:
        raise DisconnectedError(f"received an unexpected {frame.kind.name} of {frame.size} bytes")


def _advance(held: _Held, answer: BlockBuffer, connection: Connection) -> bool:
    """Add totals to the sums in their turn; answer once all their rounds have ended.

    Blocks are added in order: a rank waits only for lower ranks, and these never wait for it.
    """
    frame, shard, solver = held.frame, held.primary.shard, held.primary.in_rounds
    assert solver is not None
    step = solver.step
    length = frame.size // shard.rows[0].element_size()
    if held.added < len(held.run) and not held.primary.begun():
        return False
    totals, _ = held.buffer.of(length)
    for block in held.run[held.added :]:
        total = totals[block - frame.block]
        if not add_sum(shard, block, frame, total, step, held.primary.native):
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
