"""The JSON Schema of a manifest, for editors."""

from __future__ import annotations

from typing import Any

from dlctl.manifest.model import Manifest


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a manifest, for editors."""
    schema = _with_bounds(Manifest.model_json_schema(mode="validation"))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "dlctl manifest",
        **{key: value for key, value in schema.items() if key != "title"},
    }


_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


def _with_bounds(schema: Any) -> Any:
    """Rename bounds to JSON Schema's keywords: pydantic 2 keeps its own within `anyOf`."""
    if isinstance(schema, list):
        return [_with_bounds(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    known = {key: _with_bounds(value) for key, value in schema.items()}
    if "type" not in known:
        return known
    return {_BOUNDS.get(key, key): value for key, value in known.items()}
