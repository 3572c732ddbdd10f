"""The raw streams of one command: what each kind of transport provides."""

from __future__ import annotations

from typing import Protocol

from dlctl.errors import ConnectError


class SessionRefused(ConnectError):
    """The server permits no further session on the connection; nothing of the script has run."""


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
