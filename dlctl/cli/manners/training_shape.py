"""The shape of a training, as every command prints it with `--json`."""

from __future__ import annotations

from typing import Any


def training_properties() -> dict[str, Any]:
    """Return the schema of what `dlctl.service.describe.plain` makes of a record."""
    from pydantic import TypeAdapter

    from dlctl.record import Record
    from dlctl.service.describe import UNKNOWN_IF_0

    schema = TypeAdapter(Record).json_schema()
    known: dict[str, Any] = _inlined(schema["properties"], schema["$defs"])
    known["created_at"] = {"type": ["number", "null"], "title": "Created At"}
    for name in UNKNOWN_IF_0:
        known[name] = {**known[name], "type": [known[name]["type"], "null"]}
    known["overrides"] = {"type": ["object", "null"], "title": "Overrides"}
    return {"type": "object", "properties": known, "required": sorted(known)}


def _inlined(schema: Any, definitions: dict[str, Any]) -> Any:
    """Return a schema with what it refers to in place of each reference."""
    if isinstance(schema, list):
        return [_inlined(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {name: _inlined(each, definitions) for name, each in schema.items()}
