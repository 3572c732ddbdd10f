"""The narrow seam: a transport starts one POSIX shell script somewhere and hands over its streams.

Everything else is built on `Transport.start`, once for all transports: `run` in `script.py`; put,
get and tail in `dlctl.files.upload`. A transport knows nothing about Slurm or jobs.
Foreign errors (paramiko's, OSError of sockets) stop here: only `TransportError`s pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from dlctl.contract.ground.safe_text import lines_of
from dlctl.errors import TransportTimeout


class Process(Protocol):
    """A script that runs on the site."""

    stdin: BinaryIO
    """Bytes written reach the script's standard input; `close` ends it. A script that ended without
    reading all of it raises BrokenPipeError: `wait` then says why."""
    stdout: BinaryIO
    """The script's own output only: a banner or an `echo` of a login shell is skipped."""

    idle_timeout_s: float
    """After so long without progress a read or a write raises TransportTimeout."""
    noise: bytes
    """The output of a login shell before the script, once that has begun."""

    def wait(self, timeout_s: float) -> Completed:
        """End standard input and wait; `stdout` of the answer is what was not read yet.

        If a process that the script left behind holds its output open, `wait` ends in time.

        Raises:
            TransportTimeout: the script was killed.
            ConnectionLost
        """
        ...

    def kill(self) -> None:
        """End the script's processes (SIGTERM, then SIGKILL where possible); idempotent."""
        ...


@dataclass(frozen=True)
class Completed:
    """The end of a script."""

    exit_code: int
    """128 + n after signal n; 255 where ssh does not name the signal."""
    stdout: bytes
    stderr: bytes
    """The end of standard error, if it was long."""

    @property
    def text(self) -> str:
        """Return standard output as text; bytes that are not UTF-8 are replaced."""
        return self.stdout.decode(errors="replace")

    @property
    def lines(self) -> list[str]:
        """Return the lines of standard output."""
        return lines_of(self.text)

    @property
    def error_text(self) -> str:
        """Return standard error as text; bytes that are not UTF-8 are replaced."""
        return self.stderr.decode(errors="replace")

    @property
    def last_error_line(self) -> str:
        """Return the last line of standard error that is not empty, for messages."""
        lines = [line.strip() for line in lines_of(self.error_text) if line.strip()]
        return lines[-1] if lines else ""


class Transport(Protocol):
    """One connection to one site."""

    @property
    def name(self) -> str:
        """Return what messages call it: `this machine`, or `user@host:port` once it is known."""
        ...

    def start(
        self,
        script: str,
        *,
        idle_timeout_s: float = 120.0,
        on_stderr: Callable[[bytes], None] | None = None,
    ) -> Process:
        """Start a POSIX shell script in the home directory; no argument list shows any of it.

        It has begun when this returns: where another command has the only session, this waits.
        `on_stderr` gets the script's own standard error as it comes, in another thread. A read or
        write of its streams that makes no progress for `idle_timeout_s` raises TransportTimeout.

        Raises:
            TransportError
        """
        ...

    def run(
        self,
        script: str,
        *,
        stdin: bytes | Iterable[bytes] = b"",
        timeout_s: float = 60.0,
        on_stderr: Callable[[bytes], None] | None = None,
    ) -> Completed:
        """Run a script to its end; a non-zero exit code is an answer, not an error.

        Raises:
            TransportError
        """
        ...

    def close(self) -> None:
        """End the connection; idempotent."""
        ...


def late(name: str, timeout_s: float) -> TransportTimeout:
    """Return the error for a script that did not end in time."""
    return TransportTimeout(
        f"{name}: a command did not end within {timeout_s:g} s",
        hint="The machine may be overloaded: try again.",
    )


Prompt = Callable[[str, bool], str]
"""Asks the user: the text, and whether the input stays hidden."""
