"""Keep strangers from filling a server's log: gRPC writes a line for each failed TLS handshake."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress

EVERY_S = 600.0
_FAILED = b"Handshake failed"


def count_strangers(every_s: float = EVERY_S) -> None:
    """Have this process's standard error count failed handshakes, and tell of them seldom.

    What Python writes does not take the way through here, and is not lost when the process dies.
    """
    log = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    sys.stderr = os.fdopen(os.dup(log), "w", buffering=1, errors="backslashreplace")
    threading.Thread(
        target=_pass_on, args=(reading, log, every_s), name="strangers", daemon=True
    ).start()


def _pass_on(reading: int, log: int, every_s: float) -> None:
    told_at, count = float("-inf"), 0
    with os.fdopen(reading, "rb") as lines, os.fdopen(log, "wb", buffering=0) as out:
        for line in lines:
            if _FAILED not in line:
                with suppress(OSError):  # a full disk must not stop who writes
                    out.write(line)
                continue
            count += 1
            if time.monotonic() - told_at >= every_s:
                connections = "connection has" if count == 1 else "connections have"
                why = line.rpartition(b"] ")[2].decode(errors="replace").strip()
                told = (
                    f"dlctl: {count} {connections} failed the TLS handshake since the last such "
                    f"line: only processes of this search are let in; the newest: {why}\n"
                )
                with suppress(OSError):
                    out.write(told.encode())
                told_at, count = time.monotonic(), 0
