"""Write docs/commands.md from the help texts of the commands: python docs/make_commands.py.

A test compares the page with what `commands_page` returns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

PAGE = Path(__file__).with_name("commands.md")
HEAD = """\
# Commands

`make docs` writes this page from the commands' help texts: change those, not this page.
`dlctl COMMAND --help` prints the same.

- **Which training.** `ID` is a training id, or a unique beginning or end of it. Without an id,
  a command takes the latest training that was submitted from this folder, or from the nearest
  folder above it.
- **Output.** Commands print their reports to standard output, with `--json` as JSON; hints,
  warnings, errors and progress go to standard error. Only a terminal gets a progress bar.
- **Completion.** `dlctl --install-completion` teaches your shell the commands, ids and sites.
- **Errors** are one sentence and what to do next. dlctl shows its own tracebacks only with
  `--debug`. Of a training's traceback `logs`, `show` and `--follow` show your program's lines.
"""
EXIT_CODES = """\
## Exit codes

| code | meaning |
|---|---|
| 0 | done |
| 1 | an internal error in dlctl |
| 2 | a wrong command line, such as `dlctl delete` without a terminal and without `--yes` |
| 3 | the manifest, or the folder to send, has an error |
| 4 | a site file is wrong or missing, a check of a site failed, or pip failed there |
| 5 | the request fits no partition, or can't be planned |
| 6 | the site can't be reached, or a transfer failed |
| 7 | the scheduler refused, does not answer, or its answer was lost |
| 8 | no such training, an ambiguous id, or a training in the wrong state |
| 9 | nothing to fetch or export, a damaged file, or a target that can't be written |
| 10 | the followed training ended FAILED or CANCELLED; a rehearsal or a replay was not equal |
| 130 | Ctrl-C; a followed training continues to run |
| 141 | the program that reads dlctl's output closed the pipe, as `head` does |
"""


def command_tree() -> Any:
    """Return the whole command, as `dlctl` builds it."""
    from dlctl.cli import main

    main._register()
    return typer.main.get_command(main.app)


def leaves(group: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command with the words that call it."""
    for name, command in group.commands.items():
        if getattr(command, "commands", None):
            yield from leaves(command, (*words, name))
        elif not command.hidden:
            yield (*words, name), command


def commands_page() -> str:
    """Return the page."""
    root = command_tree()
    sections = [_section(words, command) for words, command in leaves(root, ("dlctl",))]
    return "\n".join([HEAD, _options(root), *sections, EXIT_CODES])


def _section(words: tuple[str, ...], command: Any) -> str:
    text, _, example = str(command.help or "").partition("Example: ")
    name = " ".join(words)
    usage = " ".join([name, *(_usage(p) for p in command.params if _is_argument(p)), "[OPTIONS]"])
    parts = [f"## {name}", " ".join(text.split()), f"    {usage}"]
    if example:
        parts.append(f"Example:\n\n    {example.strip()}")
    return "\n\n".join(parts) + "\n\n" + _options(command)


def _is_argument(parameter: Any) -> bool:
    return getattr(parameter, "param_type_name", "") == "argument"


def _usage(argument: Any) -> str:
    word = str(argument.metavar or argument.name.upper())
    word += "..." if argument.nargs == -1 else ""
    return word if argument.required else f"[{word}]"


def _options(command: Any) -> str:
    context = command.context_class(command, info_name=command.name)
    rows = []
    for parameter in command.params:
        record = None if getattr(parameter, "hidden", False) else parameter.get_help_record(context)
        if record:
            names, text = (re.sub(r"\s+", " ", part).strip() for part in record)
            rows.append(f"| `{_cell(names)}` | {_cell(text)} |")
    return "\n".join(["| argument or option | |", "|---|---|", *rows, ""]) if rows else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(commands_page(), encoding="utf-8")
