"""Forks programs that others ask for: see zygote.py. Not a test itself.

The arguments are a Unix socket and what is loaded: "torch", "supervisor" or "dlctl". At the socket
one asks with a line of JSON and three descriptors, the program's standard streams, and hears its
process and then how that ended; ranks under mpiexec do so, too: see forked_rank.py.

A supervisor starts watchdogs and these start collectors. They are forks of their parents here: they
have the parent, session, signals, descriptors and environment that they would have otherwise, but
no command line of their own. What all commands of dlctl do alike is done before they fork:
importing dlctl, and building its command line. At its end a command leaves its memory to the
kernel; freeing it object by object would first copy what it shares with this process.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

PROGRAMS = (
    "learner.agent", "learner.agent.preflight", "learner.collect",
    "learner.localqueue", "learner.storage", "learner.supervisor",
)  # fmt: skip
"""What a supervisor consists of, and what it starts; `python -m NAME` is forked."""
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_REQUEST_BYTES = 1 << 18


def _begin(streams: list[int], cwd: str) -> None:
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(cwd)


def _open_streams() -> None:
    """Open standard output and error, both unbuffered as after `python -u`."""
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(os.fdopen(number, "wb", 0), write_through=True) for number in (1, 2)
    )


def become_program(
    streams: list[int], argv: list[str], cwd: str, env: dict[str, str], *, leaves: bool
) -> Callable[[], object]:
    """Be a program that Python is to run, and return how: a script, or `-m` and a module.

    Args:
        leaves: It ends as learners do, which is quick.
    """
    _begin(streams, cwd)
    if argv[:2] == ["-m", "dlctl"]:
        return _command(argv[2:], env)
    _open_streams()
    work = _prepared(argv, env)
    if not leaves or "torch" not in sys.modules:
        return work
    from learner import train

    if argv[:2] == ["-m", "learner.train"]:
        return lambda: train.leave(train.main(argv[2:]))
    return lambda: (work(), train.leave(0))


def _command(argv: list[str], env: dict[str, str]) -> Callable[[], object]:
    """Be what `python -m dlctl` is at its start."""
    import typer.main

    import dlctl.__main__

    os.environ.clear()
    os.environ.update(env)
    encoding = env.get("PYTHONIOENCODING", "utf-8")
    sys.stdin = os.fdopen(0, encoding=encoding)
    sys.stdout = os.fdopen(1, "w", encoding=encoding)
    sys.stderr = os.fdopen(2, "w", encoding=encoding, errors="backslashreplace", buffering=1)
    sys.argv = [str(dlctl.__main__.__file__), *argv]
    sys.modules["__main__"].__package__ = "dlctl"
    typer.main.get_command = lambda _: BUILT[0]
    return lambda: end_as(dlctl.__main__.main)


def _prepared(argv: list[str], env: Mapping[str, str]) -> Callable[[], object]:
    os.environ.clear()
    os.environ.update(env)
    more = env.get("PYTHONPATH", "").split(":")
    if argv[0] == "-m":
        sys.argv = argv[1:]
        return lambda: runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    more.insert(0, str(Path(argv[0]).parent))
    sys.path[:0] = [folder for folder in more if folder]
    sys.argv = argv
    return lambda: runpy.run_path(argv[0], run_name="__main__")


class ForkingPopen(subprocess.Popen[Any]):
    """Runs our programs in the process that is forked, instead of a Python from scratch."""

    def __init__(self, args: Sequence[Any], **how: Any) -> None:
        words = [str(word) for word in args] if not isinstance(args, str) else []
        at = words.index("-m") + 1 if "-m" in words else 0
        if at in (2, 3) and words[0].endswith("python") and words[at] in PROGRAMS:
            how["preexec_fn"] = self._become(words[at - 1 :], **how)
        super().__init__(args, **how)

    def _become(
        self, argv: list[str], preexec_fn: Callable[[], object] = lambda: None,
        env: Mapping[str, str] | None = None, **_: Any,
    ) -> Callable[[], NoReturn]:  # fmt: skip
        def become() -> NoReturn:
            preexec_fn()
            os.closerange(3, 4096)
            for number in signal.valid_signals():
                if callable(signal.getsignal(number)):
                    signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)
            subprocess._cleanup()
            _open_streams()
            end_as(_prepared(argv, os.environ.copy() if env is None else env))

        return become


def end_as(work: Callable[[], object]) -> NoReturn:
    """Do what a program does, and end as Python would."""
    code: object = None
    try:
        work()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = code or 120
    os._exit(code if isinstance(code, int) else int(bool(code)))


class Requests:
    """Answers at a socket, until standard input ends."""

    def __init__(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(64)
        self._ranks: dict[int, tuple[int, socket.socket]] = {}
        """By the descriptor of the rank's process: its number, and who asked for it."""
        print("ready", flush=True)

    def serve(self) -> Callable[[], object] | None:
        """Answer until nobody asks; in the fork of a rank, return what it is to do."""
        while True:
            connections = {asker.fileno(): fd for fd, (_, asker) in self._ranks.items()}
            watched = [0, self._listener.fileno(), *self._ranks, *connections]
            for ready in select.select(watched, [], [])[0]:
                if ready == 0:
                    return None
                if ready == self._listener.fileno():
                    if work := self._accept():
                        return work
                elif ready in self._ranks:
                    self._collect(ready)
                elif connections[ready] in self._ranks:  # its stand-in was ended
                    os.kill(self._ranks[connections[ready]][0], signal.SIGKILL)
                    self._collect(connections[ready])

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
            return become_program(streams, **request)
        for descriptor in streams:
            os.close(descriptor)
        asker.sendall(f"{pid}\n".encode())
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


def load(what: str) -> None:
    """Import what the programs need."""
    if what == "torch":
        from learner.training import torch_compiler

        importlib.import_module("learner.train")
        torch_compiler.import_late()
        return
    if what == "dlctl":
        _load_commands()
    else:
        for name in PROGRAMS:
            package = hasattr(importlib.import_module(name), "__path__")
            program = f"{name}.__main__" if package else name
            importlib.import_module(program)
            del sys.modules[program]  # it will be the main module
        subprocess.Popen = ForkingPopen  # type: ignore[misc]
    gc.freeze()


BUILT: list[Any] = []
"""The command line of dlctl, if it is loaded."""
_LOADED_LATE = (
    "encodings.idna", "encodings.unicode_escape", "encodings.utf_8_sig", "jinja2.sandbox",
    "paramiko", "pydantic.type_adapter", "resource",
)  # fmt: skip
"""What commands load inside their functions."""


def _load_commands() -> None:
    import typer.main
    import typer.testing

    import dlctl
    from dlctl.cli import main as command_line

    for module in pkgutil.walk_packages(dlctl.__path__, "dlctl."):
        importlib.import_module(module.name)
    for name in _LOADED_LATE:
        importlib.import_module(name)
    BUILT.append(typer.main.get_command(command_line.app))
    dict(BUILT[0].commands)  # makes all of them
    typer.testing.CliRunner().invoke(command_line.app, ["--help"])


if __name__ == "__main__":
    load(sys.argv[2])
    if work := Requests(sys.argv[1]).serve():
        work()
