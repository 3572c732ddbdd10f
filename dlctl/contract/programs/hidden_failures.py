"""Tell from a command, the shell scripts that it names, and a log where a failure got lost. Pure.

A shell ends with the exit code of the last program that it ran: `python train.py | tee log` and
`python train.py; echo done` never fail. Only simple texts are judged: no functions, no `else`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dlctl.contract.programs.lone_program import programs_of
from dlctl.contract.programs.torchrun import first_failure, without_summary
from dlctl.contract.programs.tracebacks import error_at_end

_IGNORED = re.compile(
    r"\$\([^()]*\)|`[^`]*`|(?:^|(?<=\s))#[^\n'\"]*$|\\\n|\d?[<>]+&?\s*[^\s<>;|&()'\"]+",
    re.MULTILINE,
)
"""What a shell puts in place of other text, comments, lines that go on, and files of output."""
_UNCLEAR = re.compile(
    r"<<|\w\s*\(\s*\)|\|\|\s*[{(]|\b(?:function|case|else|elif|trap|PIPESTATUS)\b|\$\?|[<>]\("
)
_STRICT = re.compile(r"\bset\s(?:.*\s)?(?:-\w*e\w*|-o\s+errexit)\b|^#!.*\s-\w*e", re.MULTILINE)
_PROGRAM = re.compile(
    r"(?:.* )?(?:\S*/)?(?:python[\d.]*|torchrun|accelerate|deepspeed|mpirun|mpiexec|srun|bash|sh) "
    r"|(?:(?:\w+=\S*|nice|nohup|exec|env) )*(?:\./\S+|\S+\.(?:py|sh)) "
)
_ASIDE = re.compile(
    r"(?:\[+|\.|alias|cd|command|conda|echo|export|find|git|grep|kill|ls|mkdir|module|pip"
    r"|printf|rm|source|test|type|unset|which) "
    r"|.*\bpython\S* (?:.* )?(?:-c|-V|--version|-m (?:pip|venv)) "
)
"""Commands that name programs, but train nothing."""
_INNER = re.compile(r"\b(?:ba|da|k|z)?sh ((?:.* )?-\w*c) (['\"])(.*?)\2", re.DOTALL)
_COMMAND = re.compile(
    r"([\s(){}]*(?:(?:(?:if|then|while|until|do|done|fi|time|!)(?![^\s);&|])|for\s[^;\n]*)[\s(){}]*)*)"
    r"((?:'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.|[^|&;\n'\"\\])*)(\|\||&&|\|&|[|&;\n]|$)",
    re.DOTALL,
)
"""Words of the shell's own language, a command, and what stands between it and the next."""
_CONDITIONS = frozenset({"if", "while", "until", "!"})
_SURELY_FINE = re.compile(r"(?:true|:|echo|printf|exit 0)(?: |$)")
_OF_SHELLS = re.compile(
    r"(?:\S+: line \d+: +\d+ )?(?:Segmentation fault|Bus error|Illegal instruction|Aborted|Killed"
    r"|Floating point exception)(?: \(core dumped\))?(?: {2}.*)?$"
    r"|(?:\S+: line|\S*sh:) \d+: .*(?:not found|Permission denied|No such file.*)$"
    r"|\S*python\S*: can't open file .*"
)
"""What a shell prints of a program that a signal has killed or that is not there; and Python's."""
_MPI4PY = re.compile(r"^\s*(?:from|import) +mpi4py", re.MULTILINE)
_ABORTS = re.compile(r"-m mpi4py|\bAbort\(|excepthook|\bimport +ddl|from +learner")
_LINES_AFTER = 3
"""So many lines may follow an error that ended a program, such as a shell's `echo done`."""


def failure_at_end(lines: list[str]) -> str:
    """Return the failure with which a log of exit code 0 ends, in a few words, or ""."""
    if error := error_at_end(without_summary(lines), _LINES_AFTER):
        return f"a traceback ({error})"
    if first_failure(lines) is not None:
        return "a failure of torchrun"
    found = filter(None, map(_OF_SHELLS.match, lines[-1 - _LINES_AFTER :]))
    return next((f"'{' '.join(match[0].split())}'" for match in found), "")


def commands_of(text: str) -> list[str]:
    """Return the simple commands of a shell's text, without conditions; none if it is unclear."""
    text = _IGNORED.sub(" ", text)
    if _UNCLEAR.search(text):
        return []
    return [each.text for each in _commands(text) if not each.is_condition]


class _Command(NamedTuple):
    text: str
    link: str
    """What stands between it and the next: `;`, `&`, `|`, `&&` or `||`."""
    is_condition: bool
    in_loop: bool

    @property
    def trains(self) -> bool:
        """Whether it seems to run the user's program."""
        text = f"{self.text} "
        return not self.is_condition and bool(_PROGRAM.match(text)) and not _ASIDE.match(text)


def warn_if_hidden(command: str | None, code: Path, learners: int = 1) -> str:
    """Return where the failure of a program is lost, in one sentence with the fix, or "".

    Args:
        code: The folder with the user's files.
        learners: How many run the command.
    """
    found = (_hidden(*text) for text in _texts(command or "", code))
    return next(filter(None, found), "") or (_hangs(command or "", code) if learners > 1 else "")


def _hangs(command: str, code: Path) -> str:
    """Return that an exception in one learner leaves all others waiting in MPI."""
    for path in programs_of(command, code):
        with contextlib.suppress(OSError):
            text = path.read_text(errors="replace")[: 1 << 20]
            if path.suffix == ".py" and _MPI4PY.search(text) and not _ABORTS.search(command + text):
                return (
                    f"{path.name} uses mpi4py: after an exception in one learner the others wait "
                    f"for it in MPI until the time limit; `python -m mpi4py {path.name}` ends them"
                )
    return ""


def _hidden(where: str, text: str, options: str = "") -> str:
    """Return how a text loses a failure.

    Args:
        where: The script's name; "" is the command itself.
        options: Those of the shell that runs the text.
    """
    is_strict = _STRICT.search(text) or re.search(r"(?:^| )-\w*e|errexit", options)
    if where or options:
        text = text.replace("&>", ">")  # only in bash; in dash `&` ends a command
    text = _IGNORED.sub(" ", text)
    if _UNCLEAR.search(text):
        return ""
    commands = _commands(text)
    for inner in filter(None, (_INNER.search(each.text) for each in commands)):
        if found := _hidden(where, inner[3], inner[1]):
            return found
    ways = [_lost(commands[at:], not is_strict, "pipefail" in text + options, where)
            for at, each in enumerate(commands) if each.trains]  # fmt: skip
    lost = sorted(filter(None, ways), key=lambda way: not way[0].startswith("pipes"))
    if not lost:
        return ""
    what, fix = lost[0]
    who = where or "framework.command"
    return f"{who} {what}, so that a failure would pass for a success: {fix}"


def _lost(rest: list[_Command], goes_on: bool, adds_up: bool, where: str) -> tuple[str, str] | None:
    """Return how the failure of the first command is lost, with the fix."""
    name = f"`{rest[0].text[:60]}`"
    last = next(n for n, each in enumerate(rest) if each.link not in ("|", "|&"))
    end = next(n for n, each in enumerate(rest) if each.link in (";", "&"))
    link, after = rest[last].link, rest[end + 1 :]
    if last and not adds_up:
        if link in ("&&", "||") or " -q" in rest[last].text:
            return None  # a test
        fix = "use `bash -o pipefail -c '…'`, or leave the pipe out: dlctl keeps all output"
        if where:
            fix = f"begin {where} with `set -o pipefail` and run it with bash"
        program = rest[last].text.split()[0].rsplit("/", 1)[-1]
        return f"pipes the program into {program}, whose exit code counts", fix
    if rest[end].link == "&":
        if any(each.trains or each.text.startswith("wait ") for each in after):
            return None  # beside the program, or waited for
        return f"runs {name} in the background", "leave the & out, or end with `wait $!`"
    if either := [n for n in range(last, end) if rest[n].link == "||"]:
        other = rest[either[0] + 1]
        fine = _SURELY_FINE.match(other.text) and either[0] + 1 == end
        fix = "leave that out, or end it with `exit 1`"
        return (f"goes on with `{other.text}` if {name} fails", fix) if fine else None
    if not goes_on or link == "&&" and rest[0].in_loop:
        return None
    fix = f"begin {where or 'it'} with `set -e`"
    if after:
        return f"goes on to `{after[0].text[:60]}` if {name} fails", fix
    return (f"repeats {name} in a loop that goes on if it fails", fix) if rest[0].in_loop else None


def _commands(text: str) -> list[_Command]:
    found: list[_Command] = []
    loops, is_condition = 0, False
    for head, own, link in _COMMAND.findall(text):
        words = head.replace("(", " ").split()
        loops += sum(word in ("for", "while", "until") for word in words) - words.count("done")
        is_condition |= not _CONDITIONS.isdisjoint(words)
        own = " ".join(own.rstrip(" )").split())
        is_over = link in (";", "\n", "")
        if own:
            found.append(_Command(own, ";" if is_over else link, is_condition, loops > 0))
        elif found and not is_over:  # after `)`, `}` or `done`
            found[-1] = found[-1]._replace(link=link)
        is_condition &= not is_over
    if found and found[-1].text == "exit":  # with the code of the command before
        found.pop()
    if found and found[-1].link != "&":
        found[-1] = found[-1]._replace(link=";")
    return found


def _texts(command: str, code: Path) -> Iterator[tuple[str, str, str]]:
    yield "", command, ""
    for path in programs_of(command, code):
        if path.suffix in (".sh", ".bash"):
            options = re.search(rf"(?<=sh) (-.*)\s\S*{re.escape(path.name)}", command)
            try:
                text = path.read_text(errors="replace")[: 1 << 16]
                yield path.name, text, options[1] if options else ""
            except OSError:
                continue
