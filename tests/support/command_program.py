"""Forks commands of dlctl that others ask for: see command_server.py. Not a test itself.

A request is a line of JSON, and so is its answer. What all commands do alike is done before they
fork: importing dlctl, and building its command line. At its end a command leaves its memory to the
kernel; freeing it object by object would first copy what it shares with this process.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import pkgutil
import signal
import sys
from typing import Any

import typer.main
import typer.testing
from zygote_program import end_as

import dlctl.__main__
from dlctl.cli import main as command_line

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_LOADED_LATE = (
    "encodings.idna", "encodings.unicode_escape", "encodings.utf_8_sig", "jinja2.sandbox",
    "paramiko", "pydantic.type_adapter", "resource",
)  # fmt: skip
"""What commands load inside their functions."""


def become(argv: list[str], env: dict[str, str], cwd: str) -> None:
    """Be what `python -m dlctl` is at its start; the standard streams are those of the caller."""
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    encoding = env.get("PYTHONIOENCODING", "utf-8")
    sys.stdin = os.fdopen(0, encoding=encoding)
    sys.stdout = os.fdopen(1, "w", encoding=encoding)
    sys.stderr = os.fdopen(2, "w", encoding=encoding, errors="backslashreplace", buffering=1)
    sys.argv = [str(dlctl.__main__.__file__), *argv]
    sys.modules["__main__"].__package__ = "dlctl"
    typer.main.get_command = lambda _: BUILT


def main() -> None:
    """Answer until nobody asks; in a fork, return once it is the command."""
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        if "wait" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
        else:
            streams = [
                os.open(path, os.O_WRONLY if number else os.O_RDONLY)
                for number, path in enumerate(request.pop("streams"))
            ]
            if (answer := os.fork()) == 0:
                for number, descriptor in enumerate(streams):
                    os.dup2(descriptor, number)
                    os.close(descriptor)
                return become(**request)
            for descriptor in streams:
                os.close(descriptor)
        print(json.dumps(answer), flush=True)
    sys.exit()


if __name__ == "__main__":
    for module in pkgutil.walk_packages(dlctl.__path__, "dlctl."):
        importlib.import_module(module.name)
    for name in _LOADED_LATE:
        importlib.import_module(name)
    BUILT: Any = typer.main.get_command(command_line.app)
    dict(BUILT.commands)  # makes all of them
    typer.testing.CliRunner().invoke(command_line.app, ["--help"])
    gc.freeze()
    main()
    end_as(dlctl.__main__.main)
