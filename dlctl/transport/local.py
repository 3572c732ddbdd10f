"""Runs scripts with /bin/sh on this machine, in a process group of their own."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from pathlib import Path

from dlctl.errors import ConnectError, TransportTimeout
from dlctl.transport.script import ScriptTransport
from dlctl.transport.streams import CLEAN_UP_S

_SLICE_S = 0.25
"""How often a waiting thread checks whether it should end."""
_PIPE_BYTES = 1 << 20
"""Fewer changes between the processes: measured in docs/benchmarks.md."""


class LocalTransport(ScriptTransport):
    """The machine that dlctl runs on, as a site."""

    def __init__(self) -> None:
        self.name = "this machine"

    def _open(self, command: str) -> LocalStreams:
        home = Path.home()
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd=home if home.is_dir() else "/",
                start_new_session=True,
            )
        except OSError as error:
            raise ConnectError(
                f"this machine: /bin/sh did not start: {error.strerror}",
                hint="Check the limits on processes and memory (ulimit -a).",
            ) from error
        return LocalStreams(process, self.name)

    def close(self) -> None:
        """Do nothing: each script has its own process."""


class LocalStreams:
    """The pipes of one child.

    Args:
        process: It leads a session of its own.
        name: How errors name where it runs.
    """

    def __init__(self, process: subprocess.Popen[bytes], name: str) -> None:
        assert process.stdin and process.stdout and process.stderr
        self._process, self._name = process, name
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        self._stdin_lock = threading.Lock()
        os.set_blocking(self._stdin.fileno(), False)
        with contextlib.suppress(ImportError, AttributeError, OSError):  # Linux has it
            import fcntl

            fcntl.fcntl(self._stdout, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def read(self, timeout_s: float) -> bytes:
        """Return some bytes of standard output; b"" at its end."""
        return self._read(self._stdout.fileno(), timeout_s)

    def read_error(self, timeout_s: float) -> bytes:
        """Return some bytes of standard error; b"" at its end."""
        return self._read(self._stderr.fileno(), timeout_s)

    def _read(self, descriptor: int, timeout_s: float) -> bytes:
        self._await(descriptor, select.POLLIN, timeout_s)
        return os.read(descriptor, 256 * 1024)

    def _await(self, descriptor: int, event: int, timeout_s: float) -> None:
        poll = select.poll()
        poll.register(descriptor, event)
        if not poll.poll(timeout_s * 1000):
            raise TransportTimeout(
                f"{self._name}: a command made no progress for {timeout_s:g} s",
                hint="The machine may be overloaded: try again.",
            )

    def write(self, data: bytes | memoryview, timeout_s: float) -> None:
        """Write all of it, in slices: a writer must notice that standard input was closed."""
        view = memoryview(data)
        idle_since = time.monotonic()
        while view:
            written = self._write_some(view)
            view = view[written:]
            if written:
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > timeout_s:
                raise TransportTimeout(
                    f"{self._name}: a command read nothing of its input for {timeout_s:g} s"
                )

    def _write_some(self, view: memoryview) -> int:
        with self._stdin_lock:
            if self._stdin.closed:
                raise BrokenPipeError
            with contextlib.suppress(BlockingIOError):
                return os.write(self._stdin.fileno(), view)
            descriptor = self._stdin.fileno()
        with contextlib.suppress(TransportTimeout):
            self._await(descriptor, select.POLLOUT, _SLICE_S)
        return 0

    def close_stdin(self) -> None:
        """End standard input."""
        with self._stdin_lock, contextlib.suppress(BrokenPipeError):
            self._stdin.close()

    def exit_code(self, timeout_s: float) -> int:
        """Wait for the exit code; 128 + n after signal n."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TransportTimeout(
                f"{self._name}: a command did not end within {timeout_s:g} s"
            ) from None
        return code if code >= 0 else 128 - code

    def kill(self, pid: int | None = None) -> None:  # noqa: ARG002 - it is known here
        """End the whole process group: SIGTERM, then SIGKILL."""
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + CLEAN_UP_S
        while time.monotonic() < deadline and not self._has_ended():
            time.sleep(0.01)
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _has_ended(self) -> bool:
        """Return whether the shell has ended; it is not reaped, to keep its group id from reuse."""
        if self._process.returncode is not None:
            return True
        with contextlib.suppress(ChildProcessError):
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self._process.pid, flags) is not None
        return True

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def release(self) -> None:
        """Close the pipes."""
        self.close_stdin()
        self._stdout.close()
        self._stderr.close()
