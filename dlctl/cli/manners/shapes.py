"""The shapes of what `--json` prints, as JSON Schemas."""

from __future__ import annotations

from typing import Any


def training_schema() -> dict[str, Any]:
    """Return the schema of a training: what `plain` makes of a record, and of its docstrings."""
    from pydantic import TypeAdapter

    from dlctl.record import Record

    schema = TypeAdapter(Record).json_schema()
    known = schema["properties"]
    known["created_at"] = {"type": ["number", "null"], "title": "Created At"}
    known["overrides"] = {"type": ["object", "null"], "title": "Overrides"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "a training, as dlctl prints it with --json",
        **{key: value for key, value in schema.items() if key not in ("title", "description")},
        "required": sorted(known),
    }
