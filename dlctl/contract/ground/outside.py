"""Run a command outside of the container in which a program runs: no image has Slurm's commands.

`python -m dlctl.contract.ground.outside NAME PID` serves on the host for as long as its parent,
process PID, lives. It listens on the abstract Unix socket NAME, which needs no folder that both
sides see; both share one network, as MPI needs it, too. A connection is one command, and gives it
the caller's output; the command ends with the connection.
Where there is no container, a command is simply a child.
"""

from __future__ import annotations

import array
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from dlctl.contract.ground.processes import end_child

NAME_VARIABLE = "DLCTL_OUTSIDE"
PYTHON = "{python}"
"""In a command: the Python of the side on which it runs."""
LOST = 255
"""The exit code of a command whose host ended before it."""
_CONNECT_S = 30.0
_LEAVE_S = 10.0
_LOOK_S = 0.1


def start(
    argv: list[str], folder: Path, without: Iterable[str] = (),
    variables: Mapping[str, str] | None = None, output: IO[Any] | None = None,
    errors: IO[Any] | None = None,
) -> subprocess.Popen[bytes] | Call:  # fmt: skip
    """Start a command on the host, in the variables of the job there.

    Args:
        folder: where it runs.
        without: names of variables that it does not inherit.
        variables: what it gets in addition.
        output, errors: where it prints; None: where this process does.

    Raises:
        OSError: it can't be started.
    """
    command = {"argv": argv, "folder": str(folder), "without": list(without),
               "variables": dict(variables or {})}  # fmt: skip
    files = [(output or sys.stdout).fileno(), (errors or sys.stderr).fileno()]
    if name := os.environ.get(NAME_VARIABLE):
        return Call(name, command, files)
    return _child(command, files)


class Call:
    """A command outside, which its caller handles like a `subprocess.Popen`."""

    pid = 0
    """Its number means nothing in here."""

    def __init__(self, name: str, command: Mapping[str, Any], files: list[int]) -> None:
        self.args = command["argv"]
        self.returncode: int | None = None
        self._connection = _connect(name)
        with suppress(ConnectionError):  # it is another user's: `wait` answers that it is lost
            socket.send_fds(self._connection, [json.dumps(command).encode() + b"\n"], files)

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once it has ended.

        Raises:
            TimeoutExpired: it has not ended within `timeout` seconds.
        """
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            code = b""
            with self._connection, suppress(ConnectionError):
                code = self._connection.recv(100)
            self.returncode = int(code or LOST)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        with suppress(OSError):  # it has ended
            self._connection.send(bytes([number]))


def _connect(name: str) -> socket.socket:
    until = time.monotonic() + _CONNECT_S
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(f"\0{name}")
            return connection
        except OSError as error:
            connection.close()
            if time.monotonic() > until:
                why = f"nothing answers outside of this container: {error.strerror}"
                raise OSError(error.errno, why) from error
        time.sleep(_LOOK_S)


def _child(command: Mapping[str, Any], files: list[int]) -> subprocess.Popen[bytes]:
    argv = [sys.executable if word == PYTHON else word for word in command["argv"]]
    env = {name: value for name, value in os.environ.items() if name not in command["without"]}
    return subprocess.Popen(
        argv, cwd=command["folder"], env={**env, **command["variables"]}, stdin=subprocess.DEVNULL,
        stdout=files[0], stderr=files[1],
    )  # fmt: skip


def serve(name: str, parent: int) -> None:
    """Run what is asked for until the parent has ended, and what was asked for is over."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR2):
        signal.signal(number, lambda *_: None)  # they are meant for what runs here
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        listener.settimeout(1.0)
        while os.getppid() == parent:
            with suppress(socket.timeout):
                connection = listener.accept()[0]
                threading.Thread(target=_answer, args=(connection,)).start()


def _answer(connection: socket.socket) -> None:
    with connection, suppress(OSError):
        connection.settimeout(None)
        if not _is_own(connection):
            return
        command, files = _receive(connection)
        try:
            child = _child(command, files)
        except OSError as error:
            os.write(files[1], f"{error}\n".encode())
            connection.send(b"127")
            return
        finally:
            for each in files:
                os.close(each)
        while child.poll() is None:
            if select.select([connection], [], [], _LOOK_S)[0]:
                numbers = connection.recv(100)
                if not numbers:
                    end_child(child, _LEAVE_S)
                for number in numbers:
                    child.send_signal(number)
        connection.send(str(child.returncode).encode())


def _is_own(connection: socket.socket) -> bool:
    """Return whether the caller is of the same user: an abstract socket has no permissions."""
    form = struct.Struct("3i")
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, form.size)
    return bool(form.unpack(peer)[1] == os.getuid())


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return a command and the files of its output. Python 3.8 has no `recv_fds`."""
    files = array.array("i")
    text, controls, *_ = connection.recvmsg(1 << 16, socket.CMSG_LEN(2 * files.itemsize))
    for level, kind, content in controls:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            files.frombytes(content)
    while not text.endswith(b"\n"):
        part = connection.recv(1 << 16)
        if not part:
            raise ConnectionResetError
        text += part
    return json.loads(text), list(files)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
