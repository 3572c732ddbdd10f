"""The transport `mpi`: the same frames over MPI, for fabrics that need it.

All servers share one MPI world, in a job step of their own; rank = node. It does not survive the
loss of a peer: if one server dies, MPI ends all of them, and the supervisor starts them again, each
of which takes over its node's shards. If a node is lost, the training fails.

Only members of the MPI world can connect, so frames carry no proof.

Every MPI call returns at once, under a lock: MPI need not support concurrent threads, and waiting
uses no core (a blocking receive would spin).
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING

from psrv.errors import ServerError
from psrv.transport.base import (
    HEADER,
    DisconnectedError,
    Frame,
    Greeting,
    Purpose,
    Refuse,
    RefusedError,
    Serve,
    pack,
    unpack,
)

if TYPE_CHECKING:
    from mpi4py.MPI import Comm, Request, Status

_NAP_S, _LONGEST_NAP_S = 20e-6, 1e-3
_LOOK_EVERY_S = 0.01
_END_S = 5.0
_GREET, _FRAMES = 1, 16
"""Tags: the one of greetings, and the first one of connections."""
_CHANNELS = 8000
"""Number of connection tags: MPI promises tags up to 32,767."""
_GREETING = struct.Struct("=IIIBQHI")
_ANSWER_BYTES = 256


class World:
    """The servers' MPI world, used for one call at a time.

    Raises:
        ServerError: There are not as many servers as nodes, or MPI does not support threads.
    """

    def __init__(self, nodes: int) -> None:
        import mpi4py

        mpi4py.rc.finalize = False  # MPI_Finalize would wait for servers that are gone
        from mpi4py import MPI

        self.end: Callable[[], None] = MPI.Finalize
        self.comm: Comm = MPI.COMM_WORLD
        self.any_source: int = MPI.ANY_SOURCE
        self.status: Callable[[], Status] = MPI.Status
        self.lock = threading.Lock()
        self.node = int(self.comm.rank)
        """This server's node."""
        if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
            raise ServerError(
                "this MPI does not support programs with threads",
                hint="use another one, or parameter_server.transport: tcp",
            )
        if self.comm.size != nodes:
            raise ServerError(
                f"the servers' MPI world has {self.comm.size} processes, for {nodes} nodes",
                hint="set `launcher` of the site so that srun starts MPI, or use transport: tcp",
            )

    def abort(self, code: int) -> None:
        """End all servers, this one too."""
        self.comm.Abort(code)

    def finish(self, request: Request, closed: Callable[[], bool]) -> None:
        """Wait until a request is complete.

        Raises:
            DisconnectedError: The connection was closed meanwhile.
        """
        nap_s = 0.0
        while True:
            with self.lock:
                if request.Test():
                    return
            if closed():
                raise DisconnectedError("this server ends the connection")
            time.sleep(nap_s)
            nap_s = min(max(_NAP_S, 2 * nap_s), _LONGEST_NAP_S)


class MpiConnection:
    """A connection over MPI. The header is one message, the payload another one."""

    def __init__(self, world: World, peer: int, sends: int, receives: int) -> None:
        self._world = world
        self._peer = peer
        self._sends = sends
        self._receives = receives
        self._closed = threading.Event()
        self._header = bytearray(HEADER.size)

    def send(self, frame: Frame, payload: memoryview | None = None) -> None:
        """Send header and payload."""
        size = 0 if payload is None else payload.nbytes
        parts = [pack(frame._replace(size=size)), *([payload] if size else [])]
        for part in parts:
            with self._world.lock:
                request = self._world.comm.Isend(part, self._peer, self._sends)
            self._world.finish(request, self._closed.is_set)

    def receive(self, payload: memoryview) -> Frame:
        """Receive header and payload."""
        self.receive_message(self._header, self._closed.is_set)
        frame = unpack(self._header)
        if frame.size > payload.nbytes:
            raise DisconnectedError(f"a frame of {frame.size} bytes came, {payload.nbytes} fit")
        if frame.size:
            self.receive_message(payload[: frame.size], self._closed.is_set)
        return frame

    def receive_message(self, into: bytearray | memoryview, closed: Callable[[], bool]) -> None:
        """Wait for one message; see World.finish."""
        while not self.readable(_LOOK_EVERY_S):
            if closed():
                break
        if closed():
            raise DisconnectedError("this server ends the connection")
        with self._world.lock:
            request = self._world.comm.Irecv(into, self._peer, self._receives)
        self._world.finish(request, closed)

    def readable(self, timeout_s: float) -> bool:
        """Poll until a message is there, with pauses."""
        deadline, nap_s = time.monotonic() + timeout_s, 0.0
        while not self._closed.is_set():
            with self._world.lock:
                if self._world.comm.Iprobe(self._peer, self._receives):
                    return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(nap_s)
            nap_s = min(max(_NAP_S, 2 * nap_s), _LONGEST_NAP_S)
        return True

    def close(self) -> None:
        """Close it on this side."""
        self._closed.set()


class MpiTransport:
    """The transport over MPI; see psrv.transport.base.ServerTransport.

    A connection has two tags of its own, which its opener chooses, so that messages of an earlier
    connection never get into it.
    """

    def __init__(self, world: World, log: Callable[[str], None]) -> None:
        self._world = world
        self._log = log
        self._refuse: Refuse = _welcome
        self._serve: Serve | None = None
        self._channels = count()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._accept, name="accept", daemon=True)

    def open(self, refuse: Refuse, serve: Serve) -> int:
        """Return 0: there is no port."""
        self._refuse, self._serve = refuse, serve
        return 0

    def start(self) -> None:
        """Begin to answer greetings."""
        self._thread.start()

    def dial(self, greeting: Greeting) -> MpiConnection:
        """Greet another node's server, and wait for its answer."""
        peer, tag = greeting.to_node, _FRAMES + 2 * (next(self._channels) % _CHANNELS)
        self._send(_GREETING.pack(*greeting, tag), peer, _GREET)
        found = MpiConnection(self._world, peer, tag, tag + 1)
        answer = bytearray(_ANSWER_BYTES)
        found.receive_message(answer, self._ended.is_set)
        if reason := answer.rstrip(b"\0").decode("utf-8", "replace"):
            raise RefusedError(reason)
        return found

    def close(self) -> None:
        """Wait a while for the other servers' end, and end MPI, which can't be ended alone."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        deadline = time.monotonic() + _END_S
        with self._world.lock:
            request = self._world.comm.Ibarrier()
        with suppress(DisconnectedError):
            self._world.finish(request, lambda: time.monotonic() > deadline)
            self._world.end()
            return
        self._log("another server has not ended: aborting MPI for all")
        self._world.abort(0)

    def _send(self, words: bytes, peer: int, tag: int) -> None:
        with self._world.lock:
            request = self._world.comm.Isend(words, peer, tag)
        self._world.finish(request, self._ended.is_set)

    def _accept(self) -> None:
        words = bytearray(_GREETING.size)
        while not self._ended.is_set():
            status = self._world.status()
            with self._world.lock:
                if found := self._world.comm.Iprobe(self._world.any_source, _GREET, status):
                    self._world.comm.Recv(words, status.source, _GREET)  # it has arrived already
            if not found:
                time.sleep(_LOOK_EVERY_S)
                continue
            try:
                self._answer(words, status.source)
            except DisconnectedError:
                return

    def _answer(self, words: bytearray, peer: int) -> None:
        attempt, node, to_node, purpose, digest, stripe, tag = _GREETING.unpack(words)
        greeting = Greeting(attempt, node, to_node, Purpose(purpose), digest, stripe)
        reason = self._refuse(greeting)
        if reason:
            self._log(f"refused the server of node {peer}: {reason}")
        self._send(reason.encode()[:_ANSWER_BYTES].ljust(_ANSWER_BYTES, b"\0"), peer, tag + 1)
        if not reason:
            connection = MpiConnection(self._world, peer, tag + 1, tag)
            threading.Thread(
                target=self._serve, args=(greeting, connection), name="peer", daemon=True
            ).start()


def _welcome(_: Greeting) -> str:
    return ""
