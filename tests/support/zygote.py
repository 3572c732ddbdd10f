"""Processes that have loaded what a program needs, and fork it: a start takes no time.

See zygote_program.py.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from repository import REPOSITORY, SUPPORT

PROGRAM = SUPPORT / "zygote_program.py"
FORKED_RANK = SUPPORT / "forked_rank.py"
TIME_LIMIT_S = 90.0
ENV = {
    **os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY}/tests/cluster", "OMP_NUM_THREADS": "1",
}  # fmt: skip


class Zygote:
    """A process that has loaded modules, and forks programs that use them.

    Args:
        loaded: "torch" for learners, "supervisor" for what starts and watches them, "dlctl" for
            the command.
    """

    def __init__(self, loaded: str = "torch") -> None:
        # Not the test's standard error, which pytest throws away with that of the test it began in.
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed in close
        self._folder = tempfile.TemporaryDirectory()
        self.socket = Path(self._folder.name, "zygote")
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(self.socket), loaded],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, env=ENV,
        )  # fmt: skip
        self._turn, self._is_ready = threading.Lock(), False

    def wait_until_ready(self) -> None:
        """Wait until it has loaded all."""
        with self._turn:
            if self._is_ready:
                return
            assert self._process.stdout is not None
            self._is_ready = self._process.stdout.readline() == "ready\n"
            if not self._is_ready:
                code = self._process.wait(10)
                self._errors.seek(0)
                raise RuntimeError(f"the zygote has ended with {code}: {self._errors.read()}")

    def rank(self) -> list[str]:
        """Return what mpiexec starts in the place of Python: `[*mpiexec, *rank(), "script.py"]`."""
        self.wait_until_ready()
        return [sys.executable, "-I", "-S", str(FORKED_RANK), str(self.socket)]

    def run(
        self, *argv: str | Path, env: Mapping[str, str] | None = None, timeout_s: float = 200
    ) -> subprocess.CompletedProcess[str]:
        """Run `python ARGV`, a script or `-m MODULE`, to its end."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
            process = self.start(*argv, env={**ENV, **(env or {})}, stdout=out, stderr=errors,
                                 leaves=True)  # fmt: skip
            try:
                code = process.wait(timeout_s)
            except subprocess.TimeoutExpired as late:
                process.kill()
                raise AssertionError(f"{_all_of(out)}\n{_all_of(errors)}") from late
            return subprocess.CompletedProcess(argv, code, _all_of(out), _all_of(errors))

    def start(
        self,
        *argv: str | Path,
        env: Mapping[str, str],
        stdin: int = subprocess.DEVNULL,
        stdout: int | IO[str] | None = None,
        stderr: IO[str] | None = None,
        leaves: bool = False,
    ) -> Forked:
        """Start `python ARGV`, a script or `-m MODULE`, in the repository.

        Args:
            env: Its whole environment.
            stdin: `DEVNULL` or `PIPE`.
            stdout: A file, `PIPE`, or None for the standard error of the tests.
            stderr: A file, or None for where its standard output goes.
            leaves: It ends as learners do, without freeing what torch has.
        """
        to_it: IO[str] | None = None
        from_it: IO[str] | None = None
        with contextlib.ExitStack() as theirs:
            given = output = theirs.enter_context(Path(os.devnull).open("r+"))
            if stdin == subprocess.PIPE:
                given, to_it = _pipe(theirs, to_it=True)
            if stdout == subprocess.PIPE:
                output, from_it = _pipe(theirs, to_it=False)
            elif stdout is None:
                output = theirs.enter_context(os.fdopen(os.dup(2), "w"))
            elif not isinstance(stdout, int):
                output = stdout
            streams = [given.fileno(), output.fileno(), (stderr or output).fileno()]
            forked = self.fork(streams, argv, env, REPOSITORY, leaves=leaves)
        forked.stdin, forked.stdout = to_it, from_it
        return forked

    def fork(
        self,
        streams: list[int],
        argv: Sequence[str | Path],
        env: Mapping[str, str],
        cwd: Path,
        *,
        leaves: bool = False,
    ) -> Forked:
        """Start `python ARGV` with these standard streams."""
        self.wait_until_ready()
        request = {"argv": list(map(str, argv)), "cwd": str(cwd), "env": dict(env)}
        return Forked(self.socket, request | {"leaves": leaves}, streams)

    def close(self) -> None:
        """End it; its learners end with it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()
        self._errors.close()
        self._folder.cleanup()


@functools.cache
def light() -> Zygote:
    """Return the zygote of supervisors, watchdogs and collectors, without torch."""
    return Zygote("supervisor")


def close_light() -> None:
    """End it, if a test has used it."""
    if light.cache_info().currsize:
        light().close()
        light.cache_clear()


class Forked:
    """A process that a zygote has forked, as `subprocess.Popen` shows one of our own.

    It is killed when nobody refers to this object any more.
    """

    def __init__(self, zygote: Path, request: Mapping[str, Any], streams: list[int]) -> None:
        self.stdin: IO[str] | None = None
        self.stdout: IO[str] | None = None
        self.returncode: int | None = None
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(str(zygote))
        socket.send_fds(self._connection, [(json.dumps(request) + "\n").encode()], streams)
        self._answers = self._connection.makefile()
        self.pid = int(self._answers.readline())

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return its exit code, or minus the signal."""
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            self.returncode = int(self._answers.readline())
            self.__del__()
        return self.returncode

    def __del__(self) -> None:
        self._answers.close()
        self._connection.close()

    def poll(self) -> int | None:
        """Return its exit code, or None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def communicate(self, timeout: float = TIME_LIMIT_S) -> tuple[str, None]:
        """Read what it has printed up to its end; it had a pipe for it, or it is ""."""
        output, deadline = b"", time.monotonic() + timeout
        if self.stdin is not None:
            self.stdin.close()
        if self.stdout is not None and not self.stdout.closed:
            while select.select([self.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                if not (part := os.read(self.stdout.fileno(), 1 << 16)):
                    self.stdout.close()
                    break
                output += part
        self.wait(max(0.0, deadline - time.monotonic()))
        return output.decode(), None

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, *_: object) -> None:
        self.communicate()


def _all_of(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def _pipe(theirs: contextlib.ExitStack, *, to_it: bool) -> tuple[IO[str], IO[str]]:
    """Return both ends of a pipe: the process's own, which is closed here, and ours."""
    reading, writing = os.pipe()
    ends = os.fdopen(reading), os.fdopen(writing, "w")
    its, ours = ends if to_it else ends[::-1]
    return theirs.enter_context(its), ours


def wait_for(condition: Callable[[], Any], timeout_s: float = TIME_LIMIT_S) -> Any:
    """Return the first true answer of `condition`."""
    deadline = time.monotonic() + timeout_s
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s for {condition}"
        time.sleep(0.02)
    return answer
