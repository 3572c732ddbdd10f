"""Runs a script over raw streams: how it is sent, where its output starts, how it ends.

Shared by all transports. The command line is fixed text that every login shell understands (csh
can't carry a quoted `!` or a newline); the script itself is the first bytes of standard input. It
first prints a marker on both outputs; anything that a login shell printed before is skipped.
"""

from __future__ import annotations

import contextlib
import functools
import io
import secrets
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, cast

from dlctl.errors import RemoteCommandError, TransportError, TransportTimeout
from dlctl.package_data import data_path
from dlctl.transport.base import Completed, late
from dlctl.transport.streams import Streams, once_free

# GNU, busybox and BSD have `fullblock`: one read for the script (2 ms; 35 ms for 30 kB byte by
# byte). Others refuse the word before they read anything, and take single bytes: a bigger block
# could come short from a pipe.
_BOOTSTRAP = (
    "exec /bin/sh -c 'eval \"$(dd bs={n} count=1 iflag=fullblock 2>/dev/null"
    " || dd bs=1 count={n} 2>/dev/null)\"'"
)
_STDERR_LIMIT_BYTES = 64 * 1024
_NOISE_LIMIT_BYTES = 1024 * 1024
_INLINE_BYTES = 16 * 1024
"""Standard input up to this size fits the buffers on the way, and is written without a thread."""
_BEGIN_GRACE_S = 2.0
"""The time to wait for a script to begin before ending it: only then is its process group known."""


class ScriptProcess:
    """One running script: a `dlctl.transport.base.Process`."""

    def __init__(
        self,
        streams: Streams,
        name: str,
        marker: bytes,
        idle_timeout_s: float,
        on_stderr: Callable[[bytes], None] | None = None,
    ) -> None:
        self._streams = streams
        self._on_stderr = on_stderr
        self._name = name
        self._marker = marker
        self.idle_timeout_s = idle_timeout_s
        self._pending = b""
        self.noise = b""
        self._started = False
        self._pid: int | None = None
        self._begun = threading.Event()
        self._ended = False
        self._stderr = bytearray()
        self._stderr_reader = threading.Thread(
            target=self._drain_stderr, name="dlctl-stderr", daemon=True
        )
        self._stderr_reader.start()
        self.stdin = cast(BinaryIO, _Input(streams, idle_timeout_s))
        self.stdout = cast(BinaryIO, _Output(self))

    def wait(self, timeout_s: float) -> Completed:
        """Wait for the end; see `Process.wait`."""
        deadline = time.monotonic() + timeout_s
        try:
            self._streams.close_stdin()
            code, rest = self._drain_stdout(deadline)
        except BaseException:
            self.kill()
            raise
        self._stderr_reader.join(min(2.0, _left(deadline)))
        self._release()
        return Completed(code, rest, bytes(self._stderr))

    def kill(self) -> None:
        """End the script; see `Process.kill`."""
        if not self._ended:
            if not self._started:
                with contextlib.suppress(TransportError):
                    self._begin(time.monotonic() + _BEGIN_GRACE_S)
            self._streams.kill(self._pid)
            self._release()

    def _release(self) -> None:
        self._ended = True
        self._stderr_reader.join(2.0)  # it looks at `_ended` twice a second
        self._streams.release()

    def _drain_stdout(self, deadline: float) -> tuple[int, bytes]:
        parts: list[bytes] = []
        try:
            while chunk := self.read_some(_left(deadline)):
                parts.append(chunk)
            code = self._streams.exit_code(_left(deadline))
        except TransportTimeout:
            # A process that the script left behind may hold its output open.
            with contextlib.suppress(TransportTimeout):
                return self._streams.exit_code(0.0), b"".join(parts)
            raise
        return code, b"".join(parts)

    def read_some(self, timeout_s: float) -> bytes:
        """Return some bytes of the script's own output; b"" at its end."""
        deadline = time.monotonic() + timeout_s
        self._begin(deadline)
        if self._pending:
            chunk, self._pending = self._pending, b""
            return chunk
        return self._streams.read(_left(deadline))

    def _begin(self, deadline: float) -> None:
        """Read until the script has begun and printed its process id."""
        while not self._started:
            chunk = self._streams.read(_left(deadline))
            self._pending += chunk
            noise, found, rest = self._pending.partition(self._marker)
            pid, ended, rest = rest.partition(b"\n")
            if found and ended:
                self._started, self._pending, self.noise = True, rest, noise
                self._pid = int(pid)
                self._begun.set()
            elif not chunk or len(noise) > _NOISE_LIMIT_BYTES:
                self._begun.set()  # it never will
                raise self._never_started(noise)

    def await_begin(self, timeout_s: float) -> None:
        """Wait until the script has begun; end it if it doesn't."""
        try:
            self._begin(time.monotonic() + timeout_s)
        except BaseException:
            self.kill()
            raise

    def push_back(self, data: bytes) -> None:
        """Push bytes back, to be read next."""
        self._pending = data + self._pending if self._pending else data

    def interrupt(self) -> None:
        """End the script, from any thread; the reading thread sees the end and cleans up."""
        self._begun.wait(_BEGIN_GRACE_S)  # the reading thread finds out
        self._streams.kill(self._pid)

    def _never_started(self, noise: bytes) -> TransportError:
        with contextlib.suppress(TransportError):
            code = self._streams.exit_code(2.0)
            self._stderr_reader.join(2.0)
            output = bytes(self._stderr or noise[-2000:]).decode(errors="replace").strip()
            last = output.splitlines()[-1].strip() if output else "nothing"
            return RemoteCommandError(
                f"{self._name}: the login shell did not start /bin/sh (exit code {code}); "
                f"its last output was: {last}",
                hint="Log in by hand and check the shell's start-up files and the account.",
            )
        return RemoteCommandError(
            f"{self._name}: the login shell printed {len(noise)} bytes and did not start /bin/sh",
            hint="Log in by hand and check the shell's start-up files.",
        )

    def _drain_stderr(self) -> None:
        own = False  # what a login shell printed before is not the script's
        with contextlib.suppress(TransportError):
            while not self._ended:
                try:
                    chunk = self._streams.read_error(0.25)
                except TransportTimeout:
                    continue
                if not chunk:
                    return
                self._stderr += chunk
                marker = self._marker + b"\n"
                if (at := self._stderr.find(marker)) >= 0:
                    del self._stderr[: at + len(marker)]
                    own, chunk = True, bytes(self._stderr)
                if own and chunk and self._on_stderr is not None:
                    self._on_stderr(chunk)
                if len(self._stderr) > _STDERR_LIMIT_BYTES:
                    del self._stderr[:-_STDERR_LIMIT_BYTES]


class _Output(io.RawIOBase):
    """The script's own output, for readers such as tarfile: `read` returns whole blocks."""

    def __init__(self, process: ScriptProcess) -> None:
        self._process = process

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        parts: list[bytes] = []
        missing = size if size >= 0 else -1
        while missing and (chunk := self._process.read_some(self._process.idle_timeout_s)):
            if 0 <= missing < len(chunk):
                self._process.push_back(chunk[missing:])
                chunk = chunk[:missing]
            parts.append(chunk)
            missing -= len(chunk) if missing > 0 else 0
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read1(self, size: int) -> bytes:
        """Return what has come, and wait only if nothing has; b"" at the end."""
        chunk = self._process.read_some(self._process.idle_timeout_s)
        self._process.push_back(chunk[size:])
        return chunk[:size]

    def readline(self, size: int | None = -1) -> bytes:
        """Return a line, or as much of it as may be."""
        line, limit = b"", sys.maxsize if size is None or size < 0 else size
        while b"\n" not in line and len(line) < limit and (chunk := self.read1(limit)):
            line += chunk
        end = min(limit, line.find(b"\n") + 1 or len(line))
        self._process.push_back(line[end:])
        return line[:end]


class _Input(io.RawIOBase):
    """The script's standard input."""

    def __init__(self, streams: Streams, idle_timeout_s: float) -> None:
        self._streams = streams
        self._idle_timeout_s = idle_timeout_s

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self._streams.write(data, self._idle_timeout_s)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._streams.close_stdin()
        super().close()


class ScriptTransport(ABC):
    """The common part of all transports: all of `Transport` except `_open` and `close`."""

    name: str

    @abstractmethod
    def _open(self, command: str) -> Streams:
        """Start a command line of a login shell."""

    @abstractmethod
    def close(self) -> None:
        """End the connection; idempotent."""

    def start(
        self,
        script: str,
        *,
        idle_timeout_s: float = 120.0,
        on_stderr: Callable[[bytes], None] | None = None,
        waits: bool = True,
    ) -> ScriptProcess:
        """Start a script; see `Transport.start`.

        Args:
            waits: Until the script has begun, and for that until a session is free.
        """
        if not waits:
            return self._start(script, idle_timeout_s, on_stderr)

        def begun() -> ScriptProcess:
            process = self._start(script, idle_timeout_s, on_stderr)
            process.await_begin(idle_timeout_s)
            return process

        return once_free(begun, idle_timeout_s)

    def _start(
        self, script: str, idle_timeout_s: float, on_stderr: Callable[[bytes], None] | None
    ) -> ScriptProcess:
        text, marker = _framed(script)
        streams = self._open(_BOOTSTRAP.format(n=len(text)))
        process = ScriptProcess(streams, self.name, marker, idle_timeout_s, on_stderr)
        try:
            # A shell that ends before it has read the script explains itself when it is read from.
            with contextlib.suppress(BrokenPipeError):
                streams.write(text, idle_timeout_s)
        except BaseException:
            process.kill()
            raise
        return process

    def run(
        self,
        script: str,
        *,
        stdin: bytes | Iterable[bytes] = b"",
        timeout_s: float = 60.0,
        on_stderr: Callable[[bytes], None] | None = None,
    ) -> Completed:
        """Run a script to its end; see `Transport.run`. Where no session is free, wait for one."""
        if not isinstance(stdin, bytes):  # what is sent can't be sent again
            return self._run_once(script, stdin, timeout_s, on_stderr)
        return once_free(lambda: self._run_once(script, stdin, timeout_s, on_stderr), timeout_s)

    def _run_once(
        self, script: str, stdin: bytes | Iterable[bytes], timeout_s: float,
        on_stderr: Callable[[bytes], None] | None,
    ) -> Completed:  # fmt: skip
        deadline = time.monotonic() + timeout_s
        waits = not isinstance(stdin, bytes)
        process = self.start(script, idle_timeout_s=timeout_s, on_stderr=on_stderr, waits=waits)
        try:
            if isinstance(stdin, bytes) and len(stdin) <= _INLINE_BYTES:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.write(stdin)
                return process.wait(_left(deadline))
            return _feed_and_wait(process, stdin, deadline)
        except TransportTimeout as error:
            process.kill()
            raise late(self.name, timeout_s) from error
        except BaseException:
            process.kill()
            raise

    def __enter__(self) -> ScriptTransport:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _feed_and_wait(
    process: ScriptProcess, stdin: bytes | Iterable[bytes], deadline: float
) -> Completed:
    """Write standard input in a thread while this one reads, so that neither side waits forever."""
    failure: list[BaseException] = []

    def feed() -> None:
        try:
            for chunk in _chunks(stdin):
                process.stdin.write(chunk)
            process.stdin.close()
        except BrokenPipeError:
            return  # the script ended early; its exit code says why
        except BaseException as error:  # raised again in the caller's thread
            failure.append(error)
            process.interrupt()

    feeder = threading.Thread(target=feed, name="dlctl-stdin", daemon=True)
    feeder.start()
    parts: list[bytes] = []
    try:
        while chunk := process.read_some(_left(deadline)):
            parts.append(chunk)
        feeder.join(_left(deadline))
        end = process.wait(_left(deadline))
    except BaseException as error:
        process.kill()
        feeder.join(2.0)
        if failure:
            raise failure[0] from error
        raise
    if failure:
        raise failure[0]
    return Completed(end.exit_code, b"".join(parts) + end.stdout, end.stderr)


def _chunks(stdin: bytes | Iterable[bytes]) -> Iterator[bytes]:
    if not isinstance(stdin, bytes):
        yield from stdin
        return
    view = memoryview(stdin)
    for start in range(0, len(view), 256 * 1024):
        yield bytes(view[start : start + 256 * 1024])


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


@functools.cache
def _known_state() -> str:
    """Return the command that undoes what the user's environment does to a shell."""
    return (data_path("templates") / "known_state.sh").read_text(encoding="utf-8").rstrip()


def _framed(script: str) -> tuple[bytes, bytes]:
    """Return the text to send and the marker that its output starts after.

    The group in braces is parsed as a whole: a script cut short is a syntax error, not half a run.
    The marker is printed in two halves, so that a shell that echoes what it runs does not print it;
    on standard output the shell's process id follows.
    """
    if "\0" in script:
        raise ValueError("a shell script holds no NUL")
    first, second = secrets.token_hex(8), secrets.token_hex(8)
    begin = f"printf '%s%s%d\\n' {first} {second} $$; printf '%s%s\\n' {first} {second} >&2"
    text = f"{_known_state()}\n{begin}\n{{ :\n{script}\n}}"
    return text.encode("utf-8", "surrogateescape"), f"{first}{second}".encode()
