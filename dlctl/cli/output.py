"""The only place that prints: tables and sentences for people, JSON for programs.

Data goes to standard output; notes, hints, errors and progress go to standard error, so that
`dlctl … --json | jq` and `id=$(dlctl submit …)` work. rich is loaded only when something
is drawn on a terminal; a pipe gets plain, untruncated columns. `NO_COLOR` is honoured.

    report(value, as_json, human)   one answer: JSON if asked for, else `human(value)`
    table(columns, rows)            rows of text; the column `state` is coloured
    fields(pairs)                   name: value lines
    line / note / hint / warn       one sentence
    progress(description)           a bar on a terminal, nothing in a pipe
    paged()                         what is printed meanwhile goes through the user's pager
"""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from dlctl.contract.ground.safe_text import printable, printable_lines
from dlctl.contract.states import State
from dlctl.tell import Tell

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from dlctl.doctor.chain import Link

V = TypeVar("V")

_TONES = {"waits": "blue", "busy": "cyan", "good": "green", "warn": "yellow", "bad": "red"}
_STYLES = {state.value: _TONES[state.tone] for state in State} | {
    "ok": "green", "warning": "yellow", "failed": "red",
}  # fmt: skip

_LONG_WORD = 24
"""A word of a table that is longer may be broken, such as a path; a state or an id is not."""
_WIDE = 60
"""From so many columns on a bar has room for the rate and the time left."""
_LINK_WIDTH = 33
"""Where the third column of `link` begins."""
REPLACING = "dlctl"
"""What a stream does with a character that it can't write: see `codecs.register_error`."""
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(%|[a-zA-Z]{1,3}\b))")
"""The space of `0.5 %`, where no line of a table ends."""
_UNPRINTABLE = re.compile(r"[^ -~\n]")
_ASCII = str.maketrans(
    {"→": "->", "…": "...", "·": "-", "×": "x", "–": "-", "—": "-", "●": "o", "█": "#", "░": ".",
     "─": "-", "━": "-", "\u2800": " "}
    | dict.fromkeys("│┤├┬┴┼┌┐└┘", "|")
    | {chr(number): "*" for number in range(0x2801, 0x2900)}  # points of curves, in Braille
)  # fmt: skip


def _replaced(error: UnicodeError) -> tuple[str, int]:
    """Return dlctl's own signs in ASCII, and other characters as their escapes."""
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end].translate(_ASCII)
    return text.encode("ascii", "backslashreplace").decode("ascii"), error.end


codecs.register_error(REPLACING, _replaced)


def _console(stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=True)


def has_colours(stream: Any = None) -> bool:
    """Return whether a stream, by default standard output, shows colours."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool((stream or sys.stdout).isatty())


def _coloured(text: str, style: str, stream: Any) -> str:
    codes = {"yellow": "33", "red": "1;31", "green": "32", "blue": "34", "cyan": "36",
             "bold": "1", "dim": "2"}  # fmt: skip
    if not (text and style and has_colours(stream)):
        return text
    return f"\033[{codes[style]}m{text}\033[0m"


class _Answer:
    """Whether this command has printed JSON."""

    is_there = False


def report(value: V, as_json: bool, human: Callable[[V], object]) -> None:
    """Print one answer, as JSON if asked for."""
    if as_json:
        _Answer.is_there = True
        print(_json(value, indent=2))
    else:
        human(value)


def _json(value: Any, indent: int | None = None) -> str:
    """Return JSON that a terminal may show; characters that move its cursor are escaped.

    Where standard output lacks letters they are escaped, too, as JSON does it.
    """
    is_ascii = not (sys.stdout.encoding or "").lower().startswith("utf")
    text = json.dumps(value, indent=indent, ensure_ascii=is_ascii, default=_plain)
    return text if text.isprintable() else _UNPRINTABLE.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1]


def _plain(value: Any) -> Any:
    """Return what JSON has for a thing that says it itself, or for a dataclass."""
    if hasattr(value, "plain"):
        return value.plain()
    known = getattr(value, "__dataclass_fields__", None)
    return str(value) if known is None else {name: getattr(value, name) for name in known}


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], empty: str = "") -> None:
    """Print rows under their column names; if there are none, print `empty` to stderr.

    Where a terminal has no room, each cell gets a line of its own.
    """
    if not rows:
        return note(empty)
    from itertools import zip_longest

    from dlctl.terminal.text import width_of

    head, *body = [[printable(str(cell)) for cell in row] for row in [columns, *rows]]
    glued = [[_BEFORE_UNIT.sub("\xa0", cell) for cell in row] for row in [head, *body]]
    widths = _widths(list(zip(*glued, strict=True)))
    if widths is None:
        for row in body:
            for name, cell in zip(head, row, strict=True):
                if cell:
                    sentence(f"{name}: {cell}")
            print()
        return None
    for row in glued:
        parts = [_folded(cell, width) for cell, width in zip(row, widths, strict=True)]
        for cells in zip_longest(*parts, fillvalue=""):
            print("  ".join(
                _coloured(cell, "bold" if row is glued[0] else _STYLES.get(cell, ""), sys.stdout)
                + " " * (width - width_of(cell))
                for cell, width in zip(cells, widths, strict=True)
            ).rstrip().replace("\xa0", " "))  # fmt: skip
    return None


def _widths(columns: Sequence[Sequence[str]]) -> list[int] | None:
    """Return widths; on a terminal they break no word but very long ones; None: it has no room."""
    from dlctl.terminal.text import width_of

    whole = [max(map(width_of, cells)) for cells in columns]
    if not sys.stdout.isatty():
        return whole
    import shutil

    room = shutil.get_terminal_size().columns - 2 * (len(columns) - 1)
    words = [max(width_of(w) for cell in cells for w in cell.split(" ")) for cells in columns]
    longest = max(words)
    while sum(words := [min(word, longest) for word in words]) > room:
        if (longest := longest - 1) < _LONG_WORD:
            return None
    spare, wanted = room - sum(words), sum(whole) - sum(words)
    if wanted <= spare:
        return whole
    return [
        word + (width - word) * spare // wanted for width, word in zip(whole, words, strict=True)
    ]


def _folded(text: str, room: int) -> list[str]:
    """Return a cell as several lines; a word that is longer than one is broken."""
    from dlctl.terminal.text import cut

    lines = []
    for line in _filled(text, room):
        rest = line
        while len(head := cut(rest, room) or rest[:1]) < len(rest):
            lines.append(head)
            rest = rest[len(head) :]
        lines.append(rest)
    return lines


def _wrapped(text: str, indent: int, stream: Any = None) -> list[str]:
    """Return the lines of a text; on a terminal none is wider, unless a word is.

    Args:
        indent: How many columns stand before it.
        stream: Where it is printed; by default to standard output.
    """
    lines = text.split("\n")
    if not (stream or sys.stdout).isatty():
        return lines
    import shutil

    room = max(12, shutil.get_terminal_size().columns - indent)
    return [part for line in lines for part in _filled(line, room)]


def _filled(text: str, room: int) -> list[str]:
    """Return a line as several of so many columns, unless a word needs more.

    `textwrap` counts characters, and some of them are two columns wide.
    """
    from dlctl.terminal.text import width_of

    first, *words = text.rstrip().split(" ")
    lines = [first]
    for word in words:
        longer = f"{lines[-1]} {word}"
        if lines[-1].strip() and width_of(longer) > room:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def fields(pairs: Mapping[str, object]) -> None:
    """Print `name  value` lines; empty values are left out."""
    from dlctl.terminal.text import width_of

    shown = [(printable(k), str(v)) for k, v in pairs.items()
             if v not in (None, "", [], {})]  # fmt: skip
    width = max((width_of(name) for name, _ in shown), default=0)
    for name, value in shown:
        first, *rest = _wrapped(printable_lines(value), width + 2)
        print(f"{name}{' ' * (width - width_of(name))}  {first}")
        for more in rest:
            print(" " * (width + 2) + more)


def link(found: Link) -> None:
    """Print one link of the doctor's chain: its state, its name, what was seen, what to do."""
    import shutil

    state = f"{found.state:<7}"
    name = f"{found.site}: {found.name}" if found.site else found.name
    narrow = sys.stdout.isatty() and shutil.get_terminal_size().columns < 2 * _LINK_WIDTH
    width = len(state) + 2 if narrow else _LINK_WIDTH
    beside = 0 if narrow else 11 + len(printable(name))
    texts = _wrapped(printable_lines(found.evidence), max(width, beside))
    if found.fix and found.state != "ok":
        texts += _wrapped(f"→ {printable_lines(found.fix)}", width)
    colour = {"ok": "green", "warn": "yellow", "broken": "red"}.get(found.state, "dim")
    first = "" if narrow else texts.pop(0)
    print(f"{_coloured(state, colour, sys.stdout)}  {printable(name):<22}  {first}".rstrip())
    for more in texts:
        print(" " * width + more)
    sys.stdout.flush()


def items(text: str) -> None:
    """Print what is separated by ` · `; on a terminal as much in a line as fits."""
    unbroken = printable(text).replace(" ", "\xa0").replace("\xa0·\xa0", " ·\xa0")
    for part in _wrapped(unbroken, 0):
        print("\n".join(_wrapped(part.replace("\xa0", " "), 0)))


def line(text: str = "") -> None:
    """Print one line of data, whatever names stand in it."""
    print(printable(text))


def lines(texts: Iterable[str]) -> None:
    """Print lines of data."""
    for text in texts:
        line(text)


def sentence(text: str) -> None:
    """Print a sentence of the report; on a terminal in as many lines as it needs."""
    print("\n".join(_wrapped(printable(text), 0)))


def raw(text: str) -> None:
    """Print text as it is: a log, a screen."""
    sys.stdout.write(text)
    sys.stdout.flush()


def document(text: str) -> None:
    """Print a script or a file: as it is for a program, and without orders to a terminal."""
    raw(printable_lines(text) if sys.stdout.isatty() else text)


def json_line(*values: object) -> None:
    """Print JSON objects at once, each on a line of its own."""
    _Answer.is_there = True
    sys.stdout.write("".join(f"{_json(value)}\n" for value in values))
    sys.stdout.flush()


@contextmanager
def failing_in_json(wanted: bool) -> Iterator[None]:
    """Print what a command fails with as JSON, too, if it is wanted and nothing was printed."""
    _Answer.is_there = False
    try:
        yield
    except Exception as fault:
        code = getattr(fault, "exit_code", None)
        message = getattr(fault, "message", "")
        if wanted and code and message and not _Answer.is_there:
            hint_text = getattr(fault, "hint", "")
            json_line({"error": {"message": message, "hint": hint_text, "exit_code": code}})
        raise


def note(text: str) -> None:
    """Print a note to standard error."""
    if text:
        _say("", printable(text))


def interrupted(text: str, command: str) -> Exception:
    """Print a note below the `^C` of the terminal, and what to run next; return how to end."""
    import typer

    _say("", f"\n{printable(text)}")
    hint(command)
    return typer.Exit(130)


def _say(head: str, safe: str) -> None:
    """Print a sentence to standard error; its first line begins with the head."""
    room = len("warning: ") if head else 0
    print(head + "\n".join(_wrapped(safe, room, sys.stderr)), file=sys.stderr)


def advice(text: str) -> None:
    """Print what to do, in one line: a command that it names is there to be copied."""
    print(f"  hint: {printable(text)}", file=sys.stderr)


def hint(command: str) -> None:
    """Print the command to run next, in one line: it is there to be copied."""
    print(_coloured(f"  next: {printable(command)}", "dim", sys.stderr), file=sys.stderr)


def warn(text: str) -> None:
    """Print a warning, unless it is empty."""
    if text:
        _say(_coloured("warning: ", "yellow", sys.stderr), printable(text))


def error(text: str, hint_text: str = "") -> None:
    """Print what went wrong and what to do; lines after the first are indented."""
    safe = re.sub(r"\n(?! )", "\n  ", printable_lines(text))
    _say(_coloured("error: ", "red", sys.stderr), safe)
    if hint_text:
        advice(hint_text)


@contextmanager
def progress(description: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on a terminal, nothing in a pipe; yields `update(done_bytes, total_bytes)`."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    known_total = -1
    with _bar(_console(stderr=True), "Download", "TransferSpeed", "TimeRemaining") as bar:
        task = bar.add_task(description, total=None, visible=False)  # else "0/? bytes"

        def update(done: int, total: int) -> None:
            nonlocal known_total
            if total != known_total:  # what is here already is no part of the rate
                known_total = total
                bar.reset(task, total=total, completed=done)
            bar.update(task, completed=done, visible=True)

        yield update


@contextmanager
def counting(description: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a bar of things done on a terminal, if there are several; yields `one_more()`."""
    if total < 2 or not sys.stderr.isatty():
        yield lambda: None
        return
    with _bar(_console(stderr=True), "MofNComplete") as bar:
        task = bar.add_task(description, total=total)
        yield lambda: bar.advance(task)


def _bar(console: Console, first: str, *if_wide: str) -> Progress:
    from rich import progress as rich

    names = (first, *if_wide) if console.width >= _WIDE else (first,)
    columns = [getattr(rich, f"{name}Column")() for name in names]
    return rich.Progress(rich.TextColumn("{task.description}"), rich.BarColumn(), *columns,
                         console=console, transient=True)  # fmt: skip


def columns(in_pipe: int) -> int:
    """Return how wide the terminal is.

    Args:
        in_pipe: What a pipe gets.
    """
    import shutil

    return shutil.get_terminal_size().columns if sys.stdout.isatty() else in_pipe


def has_whole_screen() -> bool:
    """Return whether a person sits at a terminal that dlctl can draw on as a whole."""
    from importlib.util import find_spec

    return sys.stdout.isatty() and sys.stdin.isatty() and find_spec("termios") is not None


def why_no_screen() -> str:
    """Return why a person at a terminal sees pictures below one another; "" without a person."""
    from importlib.util import find_spec

    if not sys.stdout.isatty():
        return ""
    why = "standard input is no terminal" if find_spec("termios") else "this system has no termios"
    return (f"{why}, so that no key is heard: each change is printed below the last; --once prints "
            "one picture, and the dashboard draws in the browser")  # fmt: skip


def agreed(question: str, command: str, verb: str = "deleted") -> bool:
    """Ask the person at the terminal whether something may go; if not, say that nothing was done.

    Raises:
        typer.BadParameter: there is no terminal.
    """
    import typer

    try:
        answer = ask(f"{question} [y/N] ", hidden=False)
    except EOFError:
        raise typer.BadParameter(
            f"`{command}` asks first, and there is no terminal here: add --yes"
        ) from None
    is_yes = answer.strip().lower() in ("y", "yes")
    note("" if is_yes else f"nothing was {verb}")
    return is_yes


def ask(text: str, hidden: bool) -> str:
    """Ask the person at the terminal (a password, a 2FA code).

    Raises:
        EOFError: there is no terminal.
    """
    import getpass

    if not sys.stdin.isatty():
        raise EOFError(text)
    text = printable_lines(text)  # a server may ask anything
    if hidden:
        return getpass.getpass(text, stream=sys.stderr)
    sys.stderr.write(text)
    sys.stderr.flush()
    return sys.stdin.readline().rstrip("\n")


class Shown(Tell):
    """Shows a use case's notes, warnings and progress on standard error."""

    note, warn = staticmethod(note), staticmethod(warn)
    progress = staticmethod(progress)  # type: ignore[assignment]
    counting = staticmethod(counting)  # type: ignore[assignment]


class _Paged(io.TextIOWrapper):
    """Output for a pager: it ends on the terminal, so it may have colours."""

    def isatty(self) -> bool:
        return True


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        warn(f"the pager {command!r} is no command: {error}")
        return []


@contextmanager
def paged(wanted: bool = True) -> Iterator[None]:
    """Show what is printed meanwhile in the pager of `dlctl config pager`, at a terminal only."""
    from dlctl.settings import setting

    command = _words(setting("pager")[0]) if wanted and sys.stdout.isatty() else []
    if not command or command[0] in ("never", "cat"):
        yield
        return
    try:
        pager = subprocess.Popen(command, stdin=subprocess.PIPE)
    except OSError:  # there is none here
        yield
        return
    assert pager.stdin is not None
    terminal, sys.stdout = sys.stdout, _Paged(pager.stdin, errors=REPLACING)
    try:
        with contextlib.suppress(BrokenPipeError):  # the user has seen enough
            yield
            sys.stdout.flush()
    finally:
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.close()
        sys.stdout = terminal
        while True:
            with contextlib.suppress(KeyboardInterrupt):  # which is the pager's
                pager.wait()
                break
