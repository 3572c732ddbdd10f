"""Check that the nodes reach one another: each connects to the node before it and the one after.

The first learner of a node listens, and leaves its address in the attempt's folder while it does.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from pathlib import Path

from dlctl.contract import meeting_file, refresh, write_whole
from learner.agent.health.node import Findings, Here
from learner.job.directives import is_gone
from psrv.transport.unauthenticated import UnauthenticatedPeers

MEETING_S = 3.0
"""How long the first learners of the nodes wait for one another."""
_CONNECT_S = 2.0
_PAUSE_S = 0.03


def neighbours(node: int, nodes: int) -> list[int]:
    """Return the node before and the one after, in a circle."""
    return sorted({(node - 1) % nodes, (node + 1) % nodes} - {node})


class Meeting:
    """The connections of one node to its neighbours."""

    def __init__(self, here: Here, address: str) -> None:
        self._here = here
        self._node, nodes = here.ranks.node_rank, here.plan.resources.nodes
        self._others = neighbours(self._node, nodes)
        self._greeting = f"{here.plan.training_id}.{here.attempt}".encode()
        self._address = address
        self._missing = set(self._others)
        self._all_came = threading.Event()
        self._until = time.monotonic() + MEETING_S

    def __call__(self, found: Findings) -> None:
        """Listen, and connect to the neighbours."""
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        with socket.create_server(("", 0), family=family, dualstack_ipv6=dual) as server:
            server.settimeout(_PAUSE_S)
            port = server.getsockname()[1]
            path = self._file(self._node)
            write_whole(path, f"{self._address} {port}\n")
            try:
                listener = threading.Thread(target=self._listen, args=(server,), daemon=True)
                listener.start()
                for node in self._others:
                    self._reach(node, found)
                self._all_came.wait(max(0.0, self._until - time.monotonic()))
            finally:
                path.unlink(missing_ok=True)  # who comes later must not think it is unreachable
                self._all_came.set()
                listener.join()

    def _file(self, node: int) -> Path:
        return self._here.job_dir / meeting_file(self._here.attempt, node)

    def _listen(self, server: socket.socket) -> None:
        """Greet whoever comes: a stranger may say anything, or nothing."""
        here = UnauthenticatedPeers()
        while not self._all_came.is_set():
            with contextlib.suppress(OSError):
                connection, place = server.accept()
                here.add(connection, str(place[0]))
                threading.Thread(target=self._greet, args=(connection, here), daemon=True).start()

    def _greet(self, connection: socket.socket, here: UnauthenticatedPeers) -> None:
        with connection, contextlib.suppress(OSError, ValueError):
            try:
                connection.settimeout(_CONNECT_S)
                connection.sendall(self._greeting + b"\n")
                self._missing.discard(int(connection.recv(16) or b"-1"))
            finally:
                here.remove(connection)
        if not self._missing:
            self._all_came.set()

    def _reach(self, node: int, found: Findings) -> None:
        path = self._file(node)
        place = self._place(path)
        if place is None:
            return  # it has not come, or has left: nothing is known
        try:
            with socket.create_connection(place, timeout=_CONNECT_S) as connection:
                connection.sendall(b"%d" % self._node)
                if connection.recv(256).strip() == self._greeting:
                    found.reached.append(node)
        except OSError:
            refresh(path.parent)
            if not is_gone(path):
                found.unreached.append(node)

    def _place(self, path: Path) -> tuple[str, int] | None:
        while time.monotonic() < self._until:
            refresh(path.parent)
            with contextlib.suppress(OSError, ValueError):
                address, port = path.read_text().split()
                return address, int(port)
            time.sleep(_PAUSE_S)
        return None
