"""The shape of a training, as every command prints it with `--json`."""

from __future__ import annotations

from typing import Any


def training_properties() -> dict[str, Any]:
    """Return the schema of what `dlctl.cli.common.plain` makes of a record."""
    from pydantic import TypeAdapter

    from dlctl.record import Record

    schema = TypeAdapter(Record).json_schema()
    known: dict[str, Any] = schema["properties"]
    known["created_at"] = {"type": ["number", "null"], "title": "Created At"}
    known["overrides"] = {"type": ["object", "null"], "title": "Overrides"}
    known["state"] = schema["$defs"]["State"]
    return {"type": "object", "properties": known, "required": sorted(known)}
