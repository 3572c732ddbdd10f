"""The description of the interface in OpenAPI 3.1, made of the table of operations, and a page."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from http import HTTPStatus
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from dlctl import __version__
from dlctl.serve.guard import FREE
from dlctl.serve.operations import FORM, JSON, KEY, Operation
from dlctl.serve.problems import OLDER
from dlctl.service.shapes import referred, schema_of

_SCHEMA = "#/components/schemas/{model}"
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
_V1_PROBLEM = {
    "type": "object", "required": ["code", "error", "description"],
    "properties": {"code": {"type": "integer"}, "error": {"type": "string"},
                   "description": {"type": "string"}},
}  # fmt: skip
_ALWAYS = (400, 401, 403, 409, 413, 421, 422, 503)
_V1_ALWAYS = (400, 401, 403, 404, 409, 413, 421, 503)
"""Statuses with which every operation may refuse."""


def describe(operations: Iterable[Operation]) -> dict[str, Any]:
    """Return the description."""
    schemas: dict[str, Any] = {"Problem": _PROBLEM, "V1Problem": _V1_PROBLEM}
    paths: dict[str, Any] = {}
    for each in operations:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "dlctl", "version": __version__, "description":
                 "Deep learning as a service on a Slurm cluster: what the commands of dlctl do. "
                 "/v1 is for clients of FfDL; /v1/models/{id}/logs and /metrics are WebSockets."},
        "security": [{"bearer": []}, {"basic": []}],
        "paths": paths,
        "components": {"schemas": schemas, "responses": _refusals(paths),
                       "securitySchemes": {
            "bearer": {"type": "http", "scheme": "bearer"},
            "basic": {"type": "http", "scheme": "basic"}}},
    }  # fmt: skip


def _operation(each: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    parts = {name: {"type": "string"} for name in re.findall(r"{(\w+)}", each.path)}
    if each.parts is not None:
        parts |= _schema(each.parts, schemas)["properties"]
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": kind}
        for name, kind in parts.items()
    ]  # fmt: skip
    schema = _schema(each.query, schemas)
    parameters += [
        {"name": name, "in": "query", "schema": _without_null(kind),
         "required": name in schema.get("required", ())}
        for name, kind in schema["properties"].items()
    ]  # fmt: skip
    if each.has_key:
        key = {"type": "string", "pattern": f"^{KEY.pattern}$"}
        parameters.append(
            {"name": "Idempotency-Key", "in": "header", "required": False, "schema": key}
        )
    found: dict[str, Any] = {
        "operationId": each.name, "summary": each.summary, "parameters": parameters,
        "responses": _responses(each, schemas),
    }  # fmt: skip
    if each.path in FREE:
        found["security"] = []
    if body := _body(each, schemas):
        found["requestBody"] = {"required": True, "content": body}
    return found


def _body(each: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if each.body is not None:
        found[JSON] = {"schema": _of(each.body, schemas)}
    if each.form is not None:
        schema = _schema(each.form, schemas)
        parts = {name: _without_null(kind) for name, kind in schema["properties"].items()}
        as_json = {name: kind.pop("contentSchema") for name, kind in parts.items()
                   if "contentSchema" in kind}  # fmt: skip
        found[FORM] = {"schema": schema | {"properties": parts | as_json},
                       "encoding": {name: {"contentType": JSON} for name in as_json}}  # fmt: skip
    return found


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of what a query or a form says, which can be left out but not be null."""
    some: list[dict[str, Any]] = schema.get("anyOf", [])
    known = [each for each in some if each != {"type": "null"}]
    left = {key: value for key, value in schema.items() if value is not None}
    if len(known) == 1:
        del left["anyOf"]
        return known[0] | left
    return left | ({"anyOf": known} if known else {})


def _of(kind: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a type, or of the name of a shape; both stand among all."""
    if isinstance(kind, dict):
        for name in referred(kind):
            _of(name, schemas)
        return kind
    name = kind if isinstance(kind, str) else kind.__name__
    _add(schemas, name, _schema(kind, schemas))
    return _ref(name)


def _add(known: dict[str, Any], name: str, schema: dict[str, Any]) -> None:
    assert known.setdefault(name, schema) == schema, f"two schemas have the name {name}"


def _responses(each: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    is_older = each.path.startswith(OLDER)
    good = {media: {"schema": _of(each.answer, schemas)} for media in each.media}
    found: dict[str, Any] = {str(each.status): {"description": "Done.", "content": good}}
    for status in sorted({*(_V1_ALWAYS if is_older else _ALWAYS), *each.may_fail}):
        if status == HTTPStatus.PARTIAL_CONTENT:
            found[str(status)] = {"description": "Part of it.", "content": good}
        elif status == HTTPStatus.NOT_MODIFIED:
            found[str(status)] = {"description": "It has not changed."}
        else:
            found[str(status)] = {"$ref": f"#/components/responses/{'v1-' * is_older}{status}"}
    return found


def _refusals(paths: dict[str, Any]) -> dict[str, Any]:
    """Return the answers by which operations refuse, each once."""
    names = {
        each["$ref"].rpartition("/")[2] for path in paths.values() for operation in path.values()
        for each in operation["responses"].values() if "$ref" in each
    }  # fmt: skip
    kinds = {False: ("application/problem+json", "Problem"), True: (JSON, "V1Problem")}
    found: dict[str, Any] = {}
    for name in sorted(names):
        media, schema = kinds[name.startswith("v1-")]
        found[name] = {"description": HTTPStatus(int(name[-3:])).phrase,
                       "content": {media: {"schema": _ref(schema)}}}  # fmt: skip
    return found


def _ref(name: str) -> dict[str, str]:
    return {"$ref": _SCHEMA.format(model=name)}


class _Untitled(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False  # it would only repeat the name


def _schema(kind: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a type or of a shape, whose own definitions stand among all."""
    schema = schema_of(kind, _SCHEMA) if isinstance(kind, str) else TypeAdapter(kind).json_schema(
        ref_template=_SCHEMA, schema_generator=_Untitled)  # fmt: skip
    schema.pop("$schema", None)
    for name, inner in schema.pop("$defs", {}).items():
        _add(schemas, name, inner)
    if isinstance(kind, str):  # generators of clients make a class of the title
        title = f"{kind.title().replace('-', '')}Answer"
        schema |= {"description": schema["title"], "title": title}
    return schema


def page(known: dict[str, Any]) -> str:
    """Return the description as a page that loads nothing."""
    parts = []
    for path, methods in known["paths"].items():
        for method, each in methods.items():
            words = ", ".join(f"<code>{escape(p['name'])}</code>"
                              for p in each["parameters"] if p["in"] != "path")  # fmt: skip
            parts.append(
                f"<h2><code>{method.upper()} {escape(path)}</code></h2>"
                f"<p>{escape(each['summary'])}{f' Takes {words}.' if words else ''}</p>"
            )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>dlctl</title><style>"
        "body{font:16px/1.5 sans-serif;max-width:50em;margin:2em auto;padding:0 1em}"
        "h2{font-size:1em;margin:1.5em 0 0}p{margin:0}</style><h1>dlctl</h1>"
        f"<p>{escape(known['info']['description'])} "
        f"<a href=openapi.json>OpenAPI 3.1</a></p>{''.join(parts)}</html>"
    )
