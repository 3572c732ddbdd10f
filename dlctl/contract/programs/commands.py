"""Tell what is wrong with a command, and with the programs that it names. Pure.

Only what a shell surely does is judged: a path with a variable in it, or a program that the command
makes itself, is not.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from dlctl.contract.programs.hidden_failures import commands_of, warn_if_hidden
from dlctl.contract.programs.lone_program import code_files, programs_of, warn_if_alone

_WORDS_BEFORE = re.compile(r"(?:\w+=\S*|nice|nohup|exec|env|time) ")
_SHELL = re.compile(r"(?:ba|da|k|z)?sh")
_PYTHON = re.compile(r"python[\d.]*")
_LAUNCHERS = ("mpirun", "mpiexec", "srun")
_OF_SLURM = ("sbatch", "salloc")
_SUFFIXES = (".py", ".sh", ".bash")
_WITH_VALUE = ("-W", "-X", "-o", "+o")
"""Options of Python and of shells that take the next word."""


class Program(NamedTuple):
    """A program of the submitted folder that a command runs."""

    path: str
    """Relative to the folder that the command has changed to, which is mostly the first."""
    by_itself: bool
    """Whether it is run as a command, not by python or a shell."""


def warnings_of(command: str | None, learners: int, code: Path) -> list[str]:
    """Return what is wrong with a command, a sentence each with the way out.

    Args:
        learners: How many run it.
        code: The folder with the user's files.
    """
    found = (
        warn_if_alone(command, learners, code),
        warn_if_hidden(command, code, learners),
        *_launchers(command or ""),
        *_absent(command or "", code),
    )
    return [each for each in found if each]


def only_program(command: str | None) -> str:
    """Return the program of the folder that is all that a command runs, or ""."""
    commands = commands_of(command or "")
    program = _program(commands[0]) if len(commands) == 1 else None
    return program.path if program else ""


def unfit_programs(command: str | None, code: Path) -> Iterator[str]:
    """Yield why the node's shell will not run a program that a command names, a sentence each."""
    direct = {each.path for text in commands_of(command or "")
              if (each := _program(text)) and each.by_itself}  # fmt: skip
    files = {path: (code / path) for path in direct if (code / path).is_file()}
    files |= {str(path.relative_to(code)): path for path in programs_of(command or "", code)}
    for name, path in sorted(files.items()):
        with path.open("rb") as file:
            first = file.readline(1024)
        if first.endswith(b"\r\n") and (path.suffix != ".py" or name in direct):
            yield (
                f"{name} has Windows line ends (CR LF), which a shell on a node can't read; "
                rf"`sed -i 's/\r$//' {shlex.quote(name)}` makes Unix ones"
            )
        elif name in direct and not os.access(path, os.X_OK):
            yield f"{name} is not executable; chmod +x {shlex.quote(name)}"


def _program(text: str) -> Program | None:
    """Return the program of the folder that a simple command runs."""
    while before := _WORDS_BEFORE.match(text):
        text = text[before.end() :]
    try:
        words = shlex.split(text)
    except ValueError:
        return None
    interpreter = words[0].rpartition("/")[2] if words else ""
    rest = words[1:]
    if _PYTHON.fullmatch(interpreter) or _SHELL.fullmatch(interpreter):
        while rest and rest[0][:1] in "-+":
            if rest[0].startswith(("-c", "-m")) or rest[0] == "-":
                return None
            rest = rest[2 if rest[0] in _WITH_VALUE else 1 :]
        by_itself, name = False, rest[0] if rest else ""
        fits = name.endswith(_SUFFIXES)
    else:
        by_itself, name = True, words[0] if words else ""
        fits = name.startswith("./") and len(name) > 2
    is_plain = not set(name) & set("$`*?[{~") and not name.startswith("/") and ".." not in name
    return Program(os.path.normpath(name), by_itself) if fits and is_plain else None


def _launchers(command: str) -> Iterator[str]:
    """Yield what comes of starting a launcher in a learner."""
    for text in commands_of(command):
        program = _WORDS_BEFORE.sub("", text).partition(" ")[0].rpartition("/")[2]
        if program in _OF_SLURM:
            yield (
                f"framework.command runs {program}: the training would be over as soon as that job "
                "is in the queue, of which dlctl knows nothing; name the program that it runs, and "
                "ask with learners, gpus and time for what it needs"
            )
        elif program in _LAUNCHERS:
            yield (
                f"framework.command runs {program} in a learner, where it has no CPUs for "
                "processes of its own: dlctl starts each learner itself, so say how many with "
                "learners, and leave it out"
            )


def _absent(command: str, code: Path) -> Iterator[str]:
    """Yield which program is not in the folder, unless the command may make it."""
    names = {str(path.relative_to(code)) for path in code_files(code) or ()}
    bare = {name.rpartition("/")[2] for name in names}
    for text in commands_of(command):
        if (module := re.search(r"(?:^|/|\s)python[\d.]* (?:.* )?-m ([\w.]+)", text)) is not None:
            known = [name[:-3].replace("/", ".") for name in names if name.endswith(".py")]
            folders = {each.rpartition(".")[0] for each in known}
            near = get_close_matches(module[1], known, 1, 0.75)
            if near and module[1] not in {*known, *folders}:
                yield (f"framework.command runs the module {module[1]}, which is not in the "
                       f"folder; did you mean {near[0]}?")  # fmt: skip
        program = _program(text)
        name = program.path.rpartition("/")[2] if program else ""
        if name and bare and name not in bare and command.count(name) == 1:
            near = get_close_matches(name, bare, 1)
            hint = f"did you mean {near[0]}?" if near else "only what lies there is sent"
            yield f"framework.command runs {name}, which is not in {code}; {hint}"
