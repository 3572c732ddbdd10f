"""The raw streams of one command: what each kind of transport provides."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from dlctl.errors import ConnectError

T = TypeVar("T")

_FREE_S = 30.0
"""The time that a script waits for a session that another command has."""
_LONGEST_PAUSE_S = 1.0
CLEAN_UP_S = 3.0
"""The time that a script has to clean up between SIGTERM and SIGKILL."""


def end_group(pid: int) -> str:
    """Return the command that ends a script's process group: SIGTERM, time to clean up, SIGKILL."""
    return (
        f"/bin/sh -c 'kill -TERM -{pid}; n={CLEAN_UP_S * 10:.0f}; "
        f"while [ $n -gt 0 ] && kill -0 -{pid} 2>/dev/null; do sleep 0.1 2>/dev/null "
        f"|| {{ sleep 1; n=$((n - 9)); }}; n=$((n - 1)); done; kill -KILL -{pid} 2>/dev/null'"
    )


class SessionRefused(ConnectError):
    """The server permits no further session on the connection; nothing of the script has run."""


def session_refused(name: str) -> SessionRefused:
    """Return the refusal of a server, by the name of its transport."""
    return SessionRefused(
        f"{name}: the server allows no further session on the open connection",
        hint="Wait until another dlctl command has ended: MaxSessions in the server's "
        "configuration says how many may run at a time.",
    )


class Streams(Protocol):
    """The raw streams of one command; the only thing that a transport has to provide.

    Reads and writes come from different threads. Only TransportErrors and BrokenPipeError pass.
    """

    def read(self, timeout_s: float) -> bytes:
        """Return some bytes of standard output; b"" at its end."""
        ...

    def read_error(self, timeout_s: float) -> bytes:
        """Return some bytes of standard error; b"" at its end."""
        ...

    def write(self, data: bytes | memoryview, timeout_s: float) -> None:
        """Write all of it; the limit is for each step of progress."""
        ...

    def close_stdin(self) -> None:
        """End standard input; idempotent."""
        ...

    def exit_code(self, timeout_s: float) -> int:
        """Wait for the exit code."""
        ...

    def kill(self, pid: int | None) -> None:
        """End the command; `pid`, if known, is its shell, which leads its process group."""
        ...

    def release(self) -> None:
        """Free this side's resources, once nothing reads any more. Idempotent."""
        ...


def once_free(attempt: Callable[[], T], timeout_s: float) -> T:
    """Try again until the server permits a session; what was refused has not run."""
    until, pause_s = time.monotonic() + min(timeout_s, _FREE_S), 0.1
    while True:
        try:
            return attempt()
        except SessionRefused:
            if time.monotonic() > until:
                raise
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
