"""The protocol between servers of different nodes: frames of a fixed header and raw numbers.

Nothing is pickled, and nothing is text but the reason of a refusal: a payload is the elements of a
block as they lie in memory, and goes from there to the network and back.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

from psrv.errors import ServerError


class Kind(enum.IntEnum):
    """The kinds of frames."""

    TOTAL = 1
    """Replica to primary: what a node's learners have pushed to some neighbouring blocks. Payload:
    their elements."""
    WEIGHTS = 2
    """Primary to replica, for every TOTAL: the weights that include it. Payload: the same blocks'
    elements."""
    PULL = 3
    """Replica to primary: asks for the weights if they are newer than `number`."""
    PULLED = 4
    """Primary to replica, for every PULL. Payload: the block's elements, or nothing."""
    CLOCK = 5
    """Replica to primary: which ranks of the node live (`mask`) and the smallest of their clocks
    (`number`); in rounds the first one that a rank takes part in, and how many the replica has
    ended (`pushes`). Primary to replica, for every CLOCK: the smallest of the others' clocks
    (`number`) and the largest one (`pushes`); in rounds the first one that the node takes part in
    (`number`)."""


class Frame(NamedTuple):
    """The header of one message."""

    kind: Kind
    shard: int = 0
    block: int = 0
    """The first of its blocks."""
    number: int = 0
    """In rounds: how many have ended. Otherwise, to a primary: the number of the exchange (which
    starts anywhere), or with PULL how many pushes the replica's weights have had; from a primary:
    how many its weights have had."""
    mask: int = 0
    """Bits of the ranks whose values a total holds, or that live."""
    pushes: int = 0
    """How many pushes a total holds."""
    rate: float = 0.0
    """The learning rate of this moment."""
    size: int = 0
    """Bytes of the payload."""


ANY = 1 << 63
"""The number of a PULL that wants the weights in any case; no primary has it."""
HEADER = struct.Struct("=BxHIQqqdQ")
"""A frame's fields in the machine's byte order; greetings make sure that it is the same."""


class Purpose(enum.IntEnum):
    """The purpose of a connection."""

    EXCHANGE = 1
    """Totals to a primary, and the answers."""
    CLOCKS = 2
    """One server's clock to another server."""


class Greeting(NamedTuple):
    """Identifies the server that opens a connection, and its purpose."""

    attempt: int
    node: int
    to_node: int
    purpose: Purpose
    digest: int
    """A digest of the parameters and the server's solver."""


class DisconnectedError(ServerError):
    """A connection is gone; it may come back."""


class UnknownPlaceError(DisconnectedError):
    """The address of the other server is not known yet."""


class UnreachableError(DisconnectedError):
    """Nothing answers at the other server's address."""


class RefusedError(ServerError):
    """The other side refuses us: another attempt or model, or this node was given up."""
