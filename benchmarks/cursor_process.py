"""One process of cursor.py: KIND WHERE COUNT; takes so many chunks for each line that it reads.

Prints when it began and ended (CLOCK_MONOTONIC, which all processes of a machine share).
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import mmap
import os
import sqlite3
import struct
import sys
import time
from collections.abc import Callable

SAMPLES, PASSES, CHUNK = 1_000_003, 10**6, 64
Loop = Callable[[int], None]


def ours(path: str) -> Loop:
    """Take chunks as leases; report each done with the call that takes the next."""
    from psrv.cursor.file import FileCursor

    cursor = FileCursor(path, SAMPLES, PASSES)

    def loop(count: int) -> None:
        chunk = None
        for _ in range(count):
            chunk = cursor.take(CHUNK, chunk)
        assert chunk is not None
        cursor.done(chunk)

    return loop


def floor(path: str) -> Loop:
    """Increment a counter in a mapped file, under a lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.posix_fallocate(descriptor, 0, mmap.PAGESIZE)
    memory = mmap.mmap(descriptor, mmap.PAGESIZE)
    word = struct.Struct("<q")

    def loop(count: int) -> None:
        for _ in range(count):
            fcntl.lockf(descriptor, fcntl.LOCK_EX, 1)
            (value,) = word.unpack_from(memory)
            word.pack_into(memory, 0, value + CHUNK)
            fcntl.lockf(descriptor, fcntl.LOCK_UN, 1)

    return loop


def sqlite(path: str) -> Loop:
    """Increment a counter in a database with a write-ahead log, not synced at each commit."""
    database = sqlite3.connect(path, timeout=60, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    database.execute("CREATE TABLE IF NOT EXISTS cursor (id INTEGER PRIMARY KEY, next INTEGER)")
    database.execute("INSERT OR IGNORE INTO cursor VALUES (0, 0)")
    statement = f"UPDATE cursor SET next = next + {CHUNK} WHERE id = 0 RETURNING next"

    def loop(count: int) -> None:
        for _ in range(count):
            database.execute(statement).fetchall()

    return loop


def zookeeper(address: str) -> Loop:
    """Increment a counter in a ZooKeeper node: read, then write if its version is unchanged."""
    from kazoo.client import KazooClient  # type: ignore[import-not-found]
    from kazoo.exceptions import BadVersionError, NodeExistsError  # type: ignore[import-not-found]

    client = KazooClient(address)
    client.start()
    atexit.register(client.stop)
    with contextlib.suppress(NodeExistsError):
        client.create("/cursor", b"0")

    def take() -> bool:
        value, status = client.get("/cursor")
        try:
            client.set("/cursor", b"%d" % (int(value) + CHUNK), status.version)
        except BadVersionError:
            return False
        return True

    def loop(count: int) -> None:
        for _ in range(count):
            while not take():  # retry at once: kazoo's own Counter would sleep first
                pass

    return loop


def main() -> None:
    """Take chunks for each line on standard input, until it ends."""
    kind, where, count = sys.argv[1:]
    loop = {"ours": ours, "floor": floor, "sqlite": sqlite, "zookeeper": zookeeper}[kind](where)
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.monotonic()
        loop(int(count))
        print(start, time.monotonic(), flush=True)


if __name__ == "__main__":
    main()
