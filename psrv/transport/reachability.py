"""Finds out if the servers of other nodes are reachable at all: behind a firewall, none ever is.

A primary that is gone for a while is waited for. But learners whose pushes never reach it would
train apart to the end, each node for itself, and nobody would know.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from psrv.errors import ServerError
from psrv.transport.base import UnknownPlaceError, UnreachableError
from psrv.transport.tcp import Connection


class Reachability:
    """Dials other nodes; raises ServerError if a node was never reached for too long.

    Args:
        timeout_s: How long each node is tried.
        clock: Returns seconds.
    """

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
        self._tried_at: dict[int, float] = {}
        self._reached: set[int] = set()

    def dial(self, node: int, dial: Callable[[], Connection], *, may_be_gone: bool) -> Connection:
        """Open a connection to a node.

        Args:
            node: Its number.
            dial: Opens the connection.
            may_be_gone: Whether nodes are known to be lost: then this one may be, too.

        Raises:
            ServerError: The node was never reached. Otherwise what `dial` raises.
        """
        try:
            connection = dial()
        except UnknownPlaceError:
            raise
        except UnreachableError as error:
            tried_s = self._clock() - self._tried_at.setdefault(node, self._clock())
            if tried_s <= self._timeout_s or node in self._reached or may_be_gone:
                raise
            raise ServerError(
                f"the server of node {node} was never reached, for {self._timeout_s:g} s: "
                f"{error.message}",
                hint="if that node lives: the job's nodes must let each other's TCP connections "
                "in, at any port, on the network that the site's file may name (`network`); ask "
                "who runs the cluster, or train on one node",
            ) from error
        except ServerError:
            # The node was reached. It may make its shards for long, without answering handshakes,
            # until the kernel's queue is full and nothing answers at all.
            self._reached.add(node)
            raise
        self._reached.add(node)
        return connection
