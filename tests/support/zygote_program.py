"""Forks learners that others ask for: see server_job.py. Not a test itself.

A request on standard input is a line of JSON, and so is its answer. Ranks under mpiexec ask at the
Unix socket that is the argument: see forked_rank.py.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import select
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import learner.train
from learner.training import torch_compiler

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_REQUEST_BYTES = 1 << 18


def become(
    arguments: list[str], log: str, cwd: str, env: dict[str, str], errors: str = ""
) -> NoReturn:
    """Be a learner, in a fork of this process; what it prints goes to files, or to one."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    said, told = (
        os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for file in (log, errors or log)
    )
    _begin([nothing, said, told], cwd)
    os.environ.update(env)
    if arguments[0].endswith(".py"):
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")
        learner.train.leave(0)
    learner.train.leave(learner.train.main(arguments))


def _begin(streams: list[int], cwd: str) -> None:
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    os.chdir(cwd)
    sys.stdout = os.fdopen(1, "w", buffering=1)
    sys.stderr = os.fdopen(2, "w", buffering=1)


def become_rank(streams: list[int], argv: list[str], cwd: str, env: dict[str, str]) -> None:
    """Be a rank; its program ends as if Python had started it."""
    _begin(streams, cwd)
    for descriptor in streams:
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(env)
    more = [str(Path(argv[0]).parent), *env.get("PYTHONPATH", "").split(":")]
    sys.path[:0] = [folder for folder in more if folder]
    sys.argv = argv


class Requests:
    """Answers on standard input and at a socket."""

    def __init__(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(64)
        self._ended: dict[int, int] = {}  # that have ended, and how
        self._ranks: dict[int, tuple[int, socket.socket]] = {}
        """By the descriptor of the rank's process: its number, and who asked for it."""
        self._line = b""

    def serve(self) -> Callable[[], object] | None:
        """Answer until nobody asks; in the fork of a rank, return what it is to do."""
        while True:
            connections = {asker.fileno(): fd for fd, (_, asker) in self._ranks.items()}
            watched = [0, self._listener.fileno(), *self._ranks, *connections]
            for ready in select.select(watched, [], [])[0]:
                if ready == 0:
                    if not self._read_request():
                        return None
                elif ready == self._listener.fileno():
                    if work := self._accept():
                        return work
                elif ready in self._ranks:
                    self._collect(ready)
                elif connections[ready] in self._ranks:  # its stand-in was ended
                    os.kill(self._ranks[connections[ready]][0], signal.SIGKILL)
                    self._collect(connections[ready])

    def _read_request(self) -> bool:
        part = os.read(0, _REQUEST_BYTES)
        *lines, self._line = (self._line + part).split(b"\n")
        for line in lines:
            print(json.dumps(self._answer(json.loads(line))), flush=True)
        return bool(part)

    def _answer(self, request: dict[str, Any]) -> Any:
        if "ready" in request:
            return True
        if "start" in request:
            pid = os.fork()
            if not pid:
                become(request.pop("start"), **request)
            self._ended.pop(pid, None)  # of another one that had the same number
            return pid
        pid = request["poll"]
        if pid not in self._ended and (found := os.waitpid(pid, os.WNOHANG))[0]:
            self._ended[pid] = os.waitstatus_to_exitcode(found[1])
        return {"code": self._ended[pid]} if pid in self._ended else None

    def _accept(self) -> Callable[[], object] | None:
        asker, _ = self._listener.accept()
        text, streams, _, _ = socket.recv_fds(asker, _REQUEST_BYTES, 3)
        while not text.endswith(b"\n"):
            text += asker.recv(_REQUEST_BYTES)
        request = json.loads(text)
        pid = os.fork()
        if not pid:
            self._listener.close()
            for descriptor, (_, other) in self._ranks.items():
                os.close(descriptor)
                other.close()
            asker.close()
            become_rank(streams, **request)
            return lambda: runpy.run_path(sys.argv[0], run_name="__main__")
        for descriptor in streams:
            os.close(descriptor)
        self._ranks[os.pidfd_open(pid)] = (pid, asker)
        return None

    def _collect(self, descriptor: int) -> None:
        pid, asker = self._ranks.pop(descriptor)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(descriptor)
        with asker:
            try:
                asker.sendall(f"{code}\n".encode())
            except OSError:  # it is gone
                return


if __name__ == "__main__":
    torch_compiler.import_late()
    if work := Requests(sys.argv[1]).serve():
        work()
