"""Write what is made from the commands' help texts: python docs/make_commands.py.

These are docs/commands.md, the manual page docs/man/dlctl.1, which the wheel installs,
docs/json.md and docs/openapi.json. A test compares each with what its function here returns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

PAGE = Path(__file__).with_name("commands.md")
MANUAL = Path(__file__).with_name("man") / "dlctl.1"
JSON_PAGE = Path(__file__).with_name("json.md")
DESCRIPTION = Path(__file__).with_name("openapi.json")
HEAD = """\
# Commands

`make docs` writes this page from the commands' help texts: change those, not this page.
`dlctl COMMAND --help` prints the same.

- **Which training.** `ID` is a training id, a unique beginning or end of it, `@latest` (of all
  folders), or `@-2` for the one before the latest. Without an id, a command takes the latest
  training that was submitted from this folder, or from the nearest folder above it.
  [Several](run.md#which-ones) are named by ids, `--name`, `--state` and `--tag`.
- **Output.** Commands print their reports to standard output, with `--json` as JSON; hints,
  warnings, errors and progress go to standard error. Only a terminal gets a progress bar, and a
  pager for what is longer than its screen (`dlctl config pager never` turns that off).
  [JSON](json.md) has the same shape in all of them.
- **Trying.** `cancel`, and commands that remove something, have `--dry-run`.
- **Completion.** `dlctl --install-completion` teaches your shell the commands, ids, tags, sites and
  names of metrics. It asks no site.
- **Settings.** `dlctl config site mycluster` saves typing `--site`. `man dlctl` shows this page.
- **Errors** are one sentence and what to do next. dlctl shows its own tracebacks only with
  `--debug`. Of a training's traceback `logs`, `show` and `--follow` show your program's lines.
"""
JSON_HEAD = """\
# JSON

`make docs` writes this page from the records that the commands print: change those, not this page.
`dlctl schema` lists the JSON Schemas, `dlctl schema NAME` prints one.

- **One or many.** A command that lists prints a list, even of one thing or of none. A command
  about one thing prints an object. A command that takes several ids prints an object for one
  training, and otherwise a list. What grows (logs, metrics, `--follow`) is an object on each line.
- **Fields.** An object always has the fields that its schema requires: null is what is not known,
  and an empty text or list is what there is none of. A later version may add fields.
- **Units** are in the names: `_s` are seconds, `_bytes` bytes, and `_at` Unix seconds. Only
  `validate` and `schema manifest` know the manifest's own units, such as `4h`.
- **The same thing looks the same.** A training has the shape `training` wherever it is printed;
  `show`, and of a search `status`, add fields.
- **Errors.** If nothing was done, standard output holds
  `{"error": {"message": …, "hint": …, "exit_code": …}}`; the sentences go to standard error, too,
  as without `--json`. The [exit code](commands.md#exit-codes) tells the kind. Of several trainings
  standard output lists those that succeeded, and the exit code is that of the first failure.
  `validate` and the checks of sites, stores and the doctor print what they found also if that is
  bad.
- **Questions** are not asked in JSON: `delete`, `models delete` and `prune` need `--yes` or
  `--dry-run`.

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
| 8 | no such training, search or model, or several that fit |
| 9 | nothing to fetch or export, a damaged file, or a target that can't be written |
| 10 | the followed training ended FAILED or CANCELLED; a rehearsal or a replay was not equal |
| 11 | a training, or what this machine keeps, is not in a state for the command |
| 124 | the time of `dlctl wait --timeout` is over; the trainings go on |
| 130 | Ctrl-C; a followed training continues to run |
| 141 | the program that reads dlctl's output closed the pipe, as `head` does |
"""


def command_tree() -> Any:
    """Return the whole command, as `dlctl` builds it."""
    from dlctl.cli import main

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
    panels = ["\n".join(f"    {head:22}{text}" for head, text in rows) for rows in root.panels()]
    return "\n".join([HEAD, "\n\n".join(panels), "", _options(root), *sections, EXIT_CODES])


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


def manual_page() -> str:
    """Return the manual page, for man(1)."""
    root = command_tree()
    codes = re.findall(r"^\| (\d+) \| (.*) \|$", EXIT_CODES, re.MULTILINE)
    return "\n".join(
        [
            '.TH DLCTL 1 "" "dlctl" "User Commands"',
            ".SH NAME",
            r"dlctl \- deep learning as a service on any Slurm cluster",
            ".SH SYNOPSIS",
            r"\fBdlctl\fR [\-\-debug] \fICOMMAND\fR [\fIARGUMENT\fR...] [\fIOPTION\fR...]",
            ".SH DESCRIPTION",
            *(_roff(line) for line in _paragraphs(HEAD.partition("prints the same.\n")[2])),
            ".SH COMMANDS",
            *(line for words, each in leaves(root, ()) for line in _manual_of(words, each)),
            ".SH EXIT STATUS",
            *(f".TP\n.B {code}\n{_roff(meaning)}" for code, meaning in codes),
            ".SH FILES",
            ".TP\n.I $XDG_CONFIG_HOME/dlctl/\n" + _roff("sites/NAME.yml, config.yml, templates/"),
            ".TP\n.I $XDG_STATE_HOME/dlctl/\n" + _roff("record.db: the local record"),
            ".SH ENVIRONMENT",
            ".TP\n.B DLCTL_SITE\n" + _roff("the site of commands without --site"),
            ".TP\n.B DLCTL_PAGER\n" + _roff("shows what is longer than the screen, or `never`"),
            ".TP\n.B NO_COLOR\n" + _roff("no colours"),
            "",
        ]
    )


def _paragraphs(text: str) -> list[str]:
    found = [" ".join(part.split()) for part in re.split(r"\n- |\n\n", "\n" + text.strip())]
    return [f".PP\n{part}" for part in found if part]


def _manual_of(words: tuple[str, ...], command: Any) -> Iterator[str]:
    text, _, example = str(command.help or "").partition("Example: ")
    yield f".SS {_roff(' '.join(words))}"
    usage = [_usage(p) for p in command.params if _is_argument(p)]
    yield f"\\fBdlctl {_roff(' '.join(words))}\\fR {_roff(' '.join(usage))} [OPTIONS]"
    yield f".PP\n{_roff(' '.join(text.split()))}"
    if example:
        yield f".PP\nExample:\n.PP\n.RS\n{_roff(example.strip())}\n.RE"
    context = command.context_class(command, info_name=command.name)
    for parameter in command.params:
        record = None if getattr(parameter, "hidden", False) else parameter.get_help_record(context)
        if record:
            names, meaning = (re.sub(r"\s+", " ", part).strip() for part in record)
            yield f".TP\n\\fB{_roff(names)}\\fR\n{_roff(meaning)}"


def _roff(text: str) -> str:
    """Return text in which roff sees neither requests nor escapes."""
    lines = text.replace("**", "").replace("`", "").split("\n")
    plain = [line.replace("\\", r"\e").replace("-", r"\-") for line in lines]
    return "\n".join(r"\&" + line if line[:1] in "'" and line else line for line in plain)


def json_page() -> str:
    """Return the page about JSON."""
    from dlctl.service.shapes import SHAPES

    rows = [
        (words, form, f"`{name}`")
        for name, shape in SHAPES.items()
        for words, form in shape.commands.items()
    ]
    table = [f"| `dlctl {words}` | {form} | {schema} |" for words, form, schema in sorted(rows)]
    head = ["| command with `--json` | prints | `dlctl schema …`, of one thing |", "|---|---|---|"]
    return "\n".join([JSON_HEAD, *head, *table, ""])


def description() -> str:
    """Return the description of the REST interface."""
    import json

    from dlctl.serve.app import OPERATIONS
    from dlctl.serve.openapi import describe

    return json.dumps(describe(OPERATIONS), indent=1) + "\n"


if __name__ == "__main__":
    PAGE.write_text(commands_page(), encoding="utf-8")
    MANUAL.parent.mkdir(exist_ok=True)
    MANUAL.write_text(manual_page(), encoding="utf-8")
    JSON_PAGE.write_text(json_page(), encoding="utf-8")
    DESCRIPTION.write_text(description(), encoding="utf-8")
