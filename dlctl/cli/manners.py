"""The user's settings, the pager, and the schemas of what is read and printed."""

from __future__ import annotations

import contextlib
import io
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from dlctl.cli import output
from dlctl.cli.common import JSON


def complete_settings(incomplete: str) -> list[str]:
    """Return the settings with this beginning, for shell completion."""
    from dlctl.settings import SETTINGS

    return [name for name in SETTINGS if name.startswith(incomplete)]


NAME = typer.Argument(None, metavar="NAME", autocompletion=complete_settings,
                      show_default=False, help="A setting; all by default.")  # fmt: skip
VALUE = typer.Argument(None, metavar="VALUE", show_default=False, help="Its new value.")


def config(
    name: str | None = NAME, value: str | None = VALUE,
    unset: bool = typer.Option(False, "--unset", help="Take the setting away."),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Show your settings and where they come from, or change one.

    Example: dlctl config site mycluster
    """
    from dlctl.settings import SETTINGS, change, setting

    if (value is not None or unset) and name is None:
        raise typer.BadParameter("name the setting that is to change")
    if value is not None and unset:
        raise typer.BadParameter("either a value or --unset")
    if name is not None and (unset or value is not None):
        if name == "site" and value is not None:
            from dlctl.sites.files import find_site

            find_site(value)  # refuses a name that is no site's
        change(name, value)
    known = {each: setting(each) for each in ([name] if name else SETTINGS)}
    values = [
        {"name": each, "value": found, "from": source, "meaning": SETTINGS[each].text}
        for each, (found, source) in known.items()
    ]
    rows = [[each["name"], each["value"], each["from"], each["meaning"]] for each in values]
    columns = ["setting", "value", "from", "meaning"]
    output.report(values, as_json, lambda _: output.table(columns, rows))


_MANIFEST = "manifest"


def complete_schemas(incomplete: str) -> list[str]:
    """Return the names of schemas with this beginning, for shell completion."""
    from dlctl.service.shapes import SHAPES

    return [name for name in (_MANIFEST, *SHAPES) if name.startswith(incomplete)]


def schema(
    name: str | None = typer.Argument(
        None, metavar="NAME", autocompletion=complete_schemas, show_default=False,
        help="A schema; without one, all their names.",
    ),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Print the JSON Schema of manifests, for editors, or of what a command prints with `--json`.

    Example: dlctl schema manifest > manifest.schema.json
    """
    from dlctl.manifest.model import json_schema
    from dlctl.service.shapes import SHAPES, schema_of

    if name == _MANIFEST:
        return output.report(json_schema(), True, lambda _: None)
    if name in SHAPES:
        return output.report(schema_of(name), True, lambda _: None)
    if name is not None:
        raise typer.BadParameter(f"{name!r} is no schema: `dlctl schema` lists their names")
    known: list[dict[str, Any]] = [{"name": _MANIFEST, "what": "a manifest", "commands": {}}]
    known += [{"name": each, "what": shape.text, "commands": dict(shape.commands)}
              for each, shape in SHAPES.items()]  # fmt: skip
    rows = [[each["name"], each["what"], ", ".join(each["commands"]) or "-"] for each in known]
    columns = ["schema", "what", "printed with --json by"]
    return output.report(known, as_json, lambda _: output.table(columns, rows))


class _Paged(io.TextIOWrapper):
    """What is written for a pager: it goes to the terminal in the end, so it may have colours."""

    def isatty(self) -> bool:
        return True


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        output.warn(f"the pager {command!r} is no command: {error}")
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
    terminal, sys.stdout = sys.stdout, _Paged(pager.stdin, errors=output.REPLACING)
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
