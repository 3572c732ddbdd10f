"""The narrow seam: a transport starts one POSIX shell script somewhere and hands over its streams.

Everything else (run, put, get, tail) is built on `Transport.start` here and in `transfer.py`, once
for all transports. A transport knows nothing of Slurm, jobs or job directories. Foreign errors
(paramiko's, OSError of sockets) stop here: only `dlctl.errors.TransportError`s pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO, Protocol


class Process(Protocol):
    """A script that runs over there."""

    stdin: BinaryIO
    """Bytes written reach the script's standard input; `close` ends it."""
    stdout: BinaryIO
    """The script's own output only: a banner or an `echo` of a login shell is skipped."""

    def wait(self, timeout_s: float) -> Completed:
        """Wait for the end; `stdout` of the answer is what was not read yet.

        Raises:
            TransportTimeout, ConnectionLost
        """
        ...

    def kill(self) -> None:
        """Close the channel; what runs over there gets SIGHUP or a broken pipe."""
        ...


@dataclass(frozen=True)
class Completed:
    """How a script ended."""

    exit_code: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """Return standard output as text; bytes that are not UTF-8 are replaced."""
        return self.stdout.decode(errors="replace")


class Transport(Protocol):
    """One connection to one site."""

    name: str
    """For messages: `this machine`, or `user@host:port`."""

    def start(self, script: str) -> Process:
        """Start a POSIX shell script. Its text is never part of any argument list over there.

        Raises:
            TransportError
        """
        ...

    def run(
        self, script: str, *, stdin: bytes | Iterable[bytes] = b"", timeout_s: float = 60.0
    ) -> Completed:
        """Run a script to its end; a non-zero exit code is an answer, not an error.

        Raises:
            TransportError
        """
        ...

    def close(self) -> None:
        """End the connection; idempotent."""
        ...
