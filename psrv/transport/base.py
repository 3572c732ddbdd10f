"""What servers of different nodes say to each other: frames of a fixed header and raw numbers.

Nothing is pickled and nothing is text, but the reason of a refusal: a payload is the elements of a
block as they lie in memory, and goes from there to the network and back.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from typing import NamedTuple, Protocol

from psrv.errors import ServerError


class Kind(enum.IntEnum):
    """What a frame is."""

    TOTAL = 1
    """Relay to home: what a node's learners have pushed to some neighbouring blocks. Payload: their
    elements."""
    WEIGHTS = 2
    """Home to relay, for every TOTAL: the weights with it. Payload: the same blocks' elements."""
    PULL = 3
    """Relay to home: the weights are wanted, if they are newer than `number`."""
    PULLED = 4
    """Home to relay, for every PULL. Payload: the block's elements, or nothing."""
    CLOCK = 5
    """Relay to home: who lives on the node (`mask`) and the smallest of their clocks (`number`); in
    rounds the first one that one of them takes part in, and how many the replica has behind it
    (`pushes`). Home to relay, for every CLOCK: the smallest of the others' clocks (`number`) and
    the largest one (`pushes`); in rounds the first one that the node takes part in (`number`)."""


class Frame(NamedTuple):
    """One message, but for its payload."""

    kind: Kind
    shard: int = 0
    block: int = 0
    """The first one."""
    number: int = 0
    """In rounds: how many a block has behind it. Otherwise, to a home: which exchange it is (they
    are counted from anywhere), or with PULL how many pushes the weights here have had; from a home:
    how many they have had."""
    mask: int = 0
    """Bits of the ranks that a total is of, or that live."""
    pushes: int = 0
    """How many pushes a total holds."""
    rate: float = 0.0
    """The learning rate of this moment."""
    size: int = 0
    """Bytes of the payload."""


ANY = 1 << 63
"""The number of a PULL by whom the weights are wanted however new they are: of no home's."""
HEADER = struct.Struct("=BxHIQqqdQ")
"""A frame's fields in the machine's byte order, which a greeting compares."""


def pack(frame: Frame) -> bytes:
    """Return a frame's header."""
    return HEADER.pack(*frame)


def unpack(header: bytes | bytearray | memoryview) -> Frame:
    """Return the frame of a header.

    Raises:
        DisconnectedError: it is none.
    """
    kind, *fields = HEADER.unpack(header)
    try:
        return Frame(Kind(kind), *fields)
    except ValueError:
        raise DisconnectedError(f"a frame of kind {kind} came, which there is not") from None


class Purpose(enum.IntEnum):
    """What a connection is for."""

    EXCHANGE = 1
    """A relay's totals to a home, and the answers."""
    CLOCKS = 2
    """One server's clock to another server."""


class Greeting(NamedTuple):
    """Who opens a connection, and what for."""

    attempt: int
    node: int
    to_node: int
    purpose: Purpose
    digest: int
    """Of the parameters and of the server's solver: tells others apart."""
    stripe: int = 0
    """Number of the connection among those of the same two nodes and purpose."""


class Connection(Protocol):
    """An ordered pair of streams of frames. One thread may send while another one receives."""

    def send(self, frame: Frame, payload: memoryview | None = None) -> None:
        """Send a frame; its `size` is set here. Returns when the payload may be overwritten.

        Raises:
            DisconnectedError: the connection is gone.
        """

    def receive(self, payload: memoryview) -> Frame:
        """Wait for a frame, its payload into `payload[:size]`.

        Raises:
            DisconnectedError: the connection is gone, or what came is no frame of the other side.
        """

    def readable(self, timeout_s: float) -> bool:
        """Return whether a frame, or the end, has begun to come."""

    def close(self) -> None:
        """End it, for both sides and for threads that wait in it."""


Refuse = Callable[[Greeting], str]
"""Says why a greeting is not wanted, or nothing. Its sender may be a stranger: nothing that is
secret belongs into the reason."""
Serve = Callable[[Greeting, Connection], None]
"""Gets each connection, in a thread of its own."""


class Transport(Protocol):
    """How this node's server reaches the others, and they reach it."""

    def open(self, refuse: Refuse, serve: Serve) -> int:
        """Get ready to be reached; return the port, 0 where there is none.

        Raises:
            ServerError: it can't be.
        """

    def start(self) -> None:
        """Begin to let in; whoever came before waits for that, for a while."""

    def dial(self, greeting: Greeting) -> Connection:
        """Open a connection to the node that the greeting names.

        Raises:
            DisconnectedError: nobody is there, or it went in the middle.
            RefusedError: it does not want us.
        """

    def close(self) -> None:
        """Let nobody in any more; at the very end of a server that ends without an error."""


class DisconnectedError(ServerError):
    """A connection is gone; it may come back."""


class UnknownPlaceError(DisconnectedError):
    """Nobody has said where the other server is."""


class UnreachableError(DisconnectedError):
    """Nothing answers where the other server says that it is."""


class RefusedError(ServerError):
    """The other side does not want us: another attempt or model, or this node was given up."""
