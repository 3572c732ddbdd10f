"""The description of the interface in OpenAPI 3.1, made of the table of operations, and a page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from html import escape
from http import HTTPStatus
from typing import Any

from dlctl import __version__
from dlctl.serve.operations import JSON, Nothing, Operation
from dlctl.service.shapes import schema_of

BASE = "/api/v1"
_PROBLEM = {
    "type": "object", "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"}, "title": {"type": "string"}, "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What was seen, and where."},
        "hint": {"type": "string", "description": "What to do next."},
        "problems": {"type": "array", "items": {"type": "string"}},
        "exit_code": {"type": "integer", "description": "Of the command that does the same."},
    },
}  # fmt: skip
_ALWAYS = (400, 401, 403, 409, 413, 421, 503)
"""Statuses with which every operation may refuse."""


def describe(operations: Iterable[Operation]) -> dict[str, Any]:
    """Return the description."""
    schemas: dict[str, Any] = {"Problem": _PROBLEM}
    paths: dict[str, Any] = {}
    for each in operations:
        paths.setdefault(BASE + each.path, {})[each.method.lower()] = _operation(each, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "dlctl", "version": __version__, "description":
                 "Deep learning as a service on a Slurm cluster: what the commands of dlctl do."},
        "security": [{"bearer": []}, {"basic": []}],
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {
            "bearer": {"type": "http", "scheme": "bearer"},
            "basic": {"type": "http", "scheme": "basic"}}},
    }  # fmt: skip


def _operation(each: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    names = re.findall(r"{(\w+)}", each.path)
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in names
    ]  # fmt: skip
    if each.query is not Nothing:
        schema = _own(each.query.model_json_schema(), schemas)
        parameters += [
            {"name": name, "in": "query", "schema": kind,
             "required": name in schema.get("required", ())}
            for name, kind in schema["properties"].items()
        ]  # fmt: skip
    if each.has_key:
        key = {"type": "string", "minLength": 1, "maxLength": 200}
        parameters.append(
            {"name": "Idempotency-Key", "in": "header", "required": False, "schema": key}
        )
    found: dict[str, Any] = {
        "operationId": each.name, "summary": each.summary, "parameters": parameters,
        "responses": _responses(each, schemas),
    }  # fmt: skip
    if each.body is not None:
        name = each.body.__name__
        schemas[name] = _own(each.body.model_json_schema(), schemas)
        content: dict[str, Any] = {JSON: {"schema": _ref(name)}}
        if each.uploads:
            content["multipart/form-data"] = {"schema": {"type": "object", "properties": {
                "code": {"type": "string", "format": "binary"},
                **{part: {"type": "string"} for part in each.body.model_fields}}}}  # fmt: skip
        found["requestBody"] = {"required": True, "content": content}
    return found


def _responses(each: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    known = each.answer
    if isinstance(known, str):
        schemas[known] = _own(schema_of(known), schemas)
        known = _ref(known)
    else:
        for name in _named(known):
            schemas.setdefault(name, _own(schema_of(name), schemas))
    good = {"description": "Done.", "content": {media: {"schema": known} for media in each.media}}
    found: dict[str, Any] = {str(each.status): good}
    for status in sorted({*_ALWAYS, *each.may_fail}):
        bad = {"application/problem+json": {"schema": _ref("Problem")}}
        what: dict[str, Any] = {"description": HTTPStatus(status).phrase}
        if status == HTTPStatus.PARTIAL_CONTENT:
            what |= {"content": good["content"]}
        elif status != HTTPStatus.NOT_MODIFIED:
            what |= {"content": bad}
        found[str(status)] = what
    return found


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _named(schema: Any) -> Iterator[str]:
    """Yield the names of our shapes that a schema refers to."""
    if isinstance(schema, dict):
        if isinstance(name := schema.get("$ref"), str):
            yield name.rpartition("/")[2]
        for inner in schema.values():
            yield from _named(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from _named(inner)


def _own(schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose own definitions stand among all."""
    schema = dict(schema)
    schema.pop("$schema", None)
    for name, inner in schema.pop("$defs", {}).items():
        schemas[name] = _moved(inner)
    moved: dict[str, Any] = _moved(schema)
    return moved


def _moved(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {
            key: value.replace("#/$defs/", "#/components/schemas/")
            if key == "$ref" and isinstance(value, str) else _moved(value)
            for key, value in schema.items()
        }  # fmt: skip
    return [_moved(each) for each in schema] if isinstance(schema, list) else schema


def page(known: dict[str, Any]) -> str:
    """Return the description as a page that loads nothing."""
    parts = []
    for path, methods in known["paths"].items():
        for method, each in methods.items():
            words = ", ".join(
                f"<code>{escape(p['name'])}</code>" for p in each["parameters"] if p["in"] != "path"
            )
            parts.append(
                f"<h2><code>{method.upper()} {escape(path)}</code></h2>"
                f"<p>{escape(each['summary'])}{f' Takes {words}.' if words else ''}</p>"
            )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>dlctl</title><style>"
        "body{font:16px/1.5 sans-serif;max-width:50em;margin:2em auto;padding:0 1em}"
        "h2{font-size:1em;margin:1.5em 0 0}p{margin:0}</style><h1>dlctl</h1>"
        f"<p>{escape(known['info']['description'])} "
        f"<a href=/openapi.json>OpenAPI 3.1</a></p>{''.join(parts)}</html>"
    )
