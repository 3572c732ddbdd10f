"""What clients that stay cost a login host (`python -m benchmarks.guests`): see docs/upkeep.md.

Processes that sshd and its children start there in a minute, by the kernel's own events, over SSH
to a real Slurm, that of the tests, while one client looks. The floor is the same host without a
client. The partition is down: what is submitted waits.

    follow_lives, follow_waits       `dlctl logs --follow` of a training that runs, or waits
    submit_follow                    `dlctl submit --follow`
    watch_lives, watch_waits         `dlctl watch`
    list_waits                       `dlctl list --watch`
    search_watch                     `dlctl watch` of a search whose hub waits
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from login_host import Trainings  # type: ignore[import-not-found]

from benchmarks.client import Client, on_cluster
from benchmarks.report import Load, Result, main
from benchmarks.slurm import Cluster
from benchmarks.start_up import dlctl_argv
from dlctl.record import RecordStore

_SECONDS, _SETTLED_S = (30.0, 20.0, 1.0), (8.0, 8.0, 1.0)
_CONNECTED_S = 60.0
_KINDS = ("follow_", "submit_follow", "watch_", "list_waits", "search_watch")


_CONNECTOR, _PROCESSES, _LISTEN, _FORK, _EXIT = 11, (1, 1), 1, 1, 1 << 31
"""Of linux/netlink.h, linux/connector.h and linux/cn_proc.h."""


class Forks:
    """The kernel's events about new processes; needs root.

    Args:
        roots: Processes whose children, and theirs, are counted.
    """

    def __init__(self, roots: set[int]) -> None:
        self._known = roots
        self._events = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _CONNECTOR)
        self._events.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        self._events.bind((os.getpid(), 1))
        body = struct.pack("=IIIIHHI", *_PROCESSES, 0, 0, 4, 0, _LISTEN)
        self._events.send(struct.pack("=IHHII", 16 + len(body), 3, 0, 0, os.getpid()) + body)

    def count(self, seconds: float) -> int:
        """Return how many start in this time, and learn of those that started before."""
        count, end = 0, time.monotonic() + seconds
        while select.select([self._events], [], [], max(0.0, end - time.monotonic()))[0]:
            what, *_ = struct.unpack_from("=I", event := self._events.recv(4096), 36)
            if what == _FORK:
                _, parent, child, group = struct.unpack_from("=IIII", event, 52)
                if parent in self._known and child == group:  # else it is a thread
                    self._known.add(child)
                    count += 1
            elif what == _EXIT:
                self._known.discard(struct.unpack_from("=I", event, 52)[0])  # it will be reused
        return count


def _servers(cluster: Cluster) -> set[int]:
    """Return the sshd of a cluster's login host, as this machine numbers it."""
    folder, found = str(cluster.ssh_config.parent).encode(), set[int]()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            words = (process / "cmdline").read_bytes()
            if folder in words and b"/accept.py" in words:  # it starts an sshd for each connection
                found.add(int(process.name))
    return found


class Host:
    """The login host, and the commands of somebody far away."""

    def __init__(self, client: Client, load: Load) -> None:
        self._client, self._load = client, load
        self._forks = Forks(_servers(client.cluster))
        self._floor = self.per_minute()

    def per_minute(self) -> float:
        """Return how many processes start there in a minute."""
        return self._forks.count(_SECONDS[self._load]) * 60 / _SECONDS[self._load]

    @contextmanager
    def guest(self, *words: str) -> Iterator[None]:
        """Run a command of dlctl that stays; it has settled when the block begins.

        Raises:
            RuntimeError: it did not stay.
        """
        log = self._client.folder / "said"
        with log.open("wb") as file, subprocess.Popen(
            dlctl_argv(*words), env=self._client.env, cwd=self._client.work,
            stdin=subprocess.DEVNULL, stdout=file, stderr=file,
        ) as process:  # fmt: skip
            try:
                until = time.monotonic() + _CONNECTED_S
                while not self._forks.count(_SETTLED_S[self._load]):  # its login starts some
                    if time.monotonic() > until:
                        raise RuntimeError(f"dlctl {' '.join(words)} has not connected")
                self._forks.count(_SETTLED_S[self._load])
                yield
                if process.poll() is not None:
                    raise RuntimeError(f"dlctl {' '.join(words)} ended: {log.read_text()[-500:]}")
            finally:
                process.terminate()

    def cost(self, what: str, *words: str) -> Result:
        """Return what a command costs."""
        with self.guest(*words):
            ours = self.per_minute()
        return Result(what, "processes/min", round(ours, 1), round(self._floor, 1))


def measure(load: Load) -> Iterator[Result]:
    """Yield each result as soon as it is known; nothing if the cluster's programs are missing."""
    with on_cluster(*_KINDS) as client:
        if client is None:
            return
        client.use_root("dl-guests")
        client.submit()
        host = Host(client, load)
        (waits,) = (path.name for path in (client.cluster.home / "dl-guests/jobs").iterdir())
        yield host.cost("follow_waits", "logs", "--follow", waits)
        yield host.cost("submit_follow", "submit", "manifest.yml", "--site", "testbed", "--follow")
        yield host.cost("watch_waits", "watch", waits)
        yield host.cost("list_waits", "list", "--watch")
        lives = Trainings(client.cluster.home / "dl-guests", 1)
        RecordStore(Path(client.env["XDG_STATE_HOME"], "dlctl/record.db")).add(*lives.records)
        with lives.living():
            yield host.cost("follow_lives", "logs", "--follow", "t-0")
            yield host.cost("watch_lives", "watch", "t-0")
        client.dlctl("search", "init", "search")
        client.dlctl("search", "start", "search/search.yml", "--site", "testbed")
        yield host.cost("search_watch", "watch")


if __name__ == "__main__":
    main(measure)
