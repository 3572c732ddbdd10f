"""`dlctl schema`: JSON Schemas of manifests, and of what `--json` prints."""

from __future__ import annotations

from typing import Any

import typer

from dlctl.cli import output
from dlctl.cli.common import JSON

_MANIFEST = "manifest"


def complete_schemas(incomplete: str) -> list[str]:
    """Return the names of schemas with this beginning, for shell completion."""
    from dlctl.cli.manners.shapes import SHAPES

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
    from dlctl.cli.manners.shapes import SHAPES, schema_of
    from dlctl.manifest.schema import json_schema

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
