"""One table of operations, from which routes and their description are made.

An operation names the types of what it takes: they check a request, and they describe it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
)
from starlette.datastructures import UploadFile
from starlette.responses import Response

from dlctl.errors import in_words
from dlctl.manifest.errors import shown
from dlctl.serve.problems import Malformed, TooLarge, json_bytes
from dlctl.service.client import TAG
from dlctl.sites.model import NAME_PATTERN

if TYPE_CHECKING:
    from starlette.requests import Request

    from dlctl.lifecycle import Session
    from dlctl.record import Record
    from dlctl.serve.desk import Desk

BASE = "/api/v1"
JSON = "application/json"
FORM = "multipart/form-data"
MOST_JSON_BYTES = 1 << 20
KEY = re.compile(r"[!-~](?:[ -~]{0,198}[!-~])?")


# What requests say --------------------------------------------------------------------------------


class Strict(BaseModel):
    """Part of a request; a name that it does not have is refused."""

    model_config = ConfigDict(extra="forbid")


class Nothing(Strict):
    """A request that says nothing."""


def _file(value: object) -> UploadFile:
    if not isinstance(value, UploadFile):
        raise ValueError("it is a file: give it a file name")
    return value


def _text(value: object) -> object:
    if not isinstance(value, UploadFile):
        return value
    content = value.file.read(MOST_JSON_BYTES + 1)
    if len(content) > MOST_JSON_BYTES:
        raise ValueError(f"it has at most {MOST_JSON_BYTES:,} bytes")
    return content.decode()


def like(pattern: re.Pattern[str]) -> Any:
    """Return what tells a field that the pattern fits the whole of its text."""
    return Field(pattern=f"^(?:{pattern.pattern})$")


File = Annotated[
    Any, BeforeValidator(_file), WithJsonSchema({"type": "string", "format": "binary"})
]
"""A file that is part of a form."""
Text = Annotated[str, BeforeValidator(_text)]
"""Part of a form, as text or as a file."""
Tag = Annotated[str, like(TAG)]
MOST_TAGS = 100
Site = Annotated[str, like(NAME_PATTERN)]


@dataclass(frozen=True)
class Call:
    """One request."""

    desk: Desk
    request: Request
    query: Any = None
    body: Any = None

    def part(self, name: str) -> str:
        """Return a part of the path."""
        return str(self.request.path_params[name])

    @contextmanager
    def training(self, *, search: bool = False) -> Iterator[tuple[Session, Record]]:
        """Open the site of the training that the path names; yield both.

        Raises:
            NotFound
        """
        record = self.desk.find_now(self.part("id"), search=search)
        with self.desk.open(record.site) as session:
            yield session, record

    @property
    def key(self) -> str | None:
        """Return the idempotency key.

        Raises:
            Malformed: it is too long, or not printable.
        """
        key = self.request.headers.get("idempotency-key")
        if key is not None and not KEY.fullmatch(key):
            raise Malformed("an Idempotency-Key has 1 to 200 printable ASCII characters")
        return key

    @property
    def follows(self) -> bool:
        """Return whether the client asks for a stream of events."""
        return "text/event-stream" in self.request.headers.get("accept", "")


Do = Callable[[Call], Any]
"""Returns a response, or an awaitable of one; a plain function runs in a thread: it may wait."""


@dataclass(frozen=True)
class Operation:
    """One method of one path."""

    method: str
    path: str
    name: str
    summary: str
    do: Do
    query: type[BaseModel] = Nothing
    body: type[BaseModel] | None = None
    """The content of a JSON body."""
    form: type[BaseModel] | None = None
    """The content of a form's parts."""
    answer: Any = field(default_factory=dict)
    """The name of a shape of `dlctl schema`, a type, or a JSON Schema."""
    status: int = 200
    media: Sequence[str] = (JSON,)
    has_key: bool = False
    may_fail: Sequence[int] = ()
    """The statuses with which it may refuse, besides those of all operations."""
    parts: type[BaseModel] | None = None
    """The parts of the path; None: any text."""

    async def __call__(self, desk: Desk, request: Request) -> Response:
        """Check a request, and do what it asks for."""
        if self.parts is not None:
            checked(self.parts, request.path_params, "the path")
        query = _once(self.query, request.query_params.multi_items(), "the query")
        if self.form is not None and (_is_form(request) or self.body is None):
            if not _is_form(request):
                raise _of_another_kind(request, FORM)
            async with request.form(
                max_files=2, max_fields=20 + MOST_TAGS, max_part_size=MOST_JSON_BYTES
            ) as form:
                body = _once(self.form, form.multi_items(), "the form")
                return await self._do(Call(desk, request, query, body))
        body = None
        if self.body is not None:
            if _kind(request) not in (JSON, ""):
                raise _of_another_kind(request, f"{JSON} or {FORM}" if self.form else JSON)
            body = checked(self.body, await _json(request), "the body")
        return await self._do(Call(desk, request, query, body))

    async def _do(self, call: Call) -> Response:
        if iscoroutinefunction(self.do):
            found: Response = await self.do(call)
            return found
        return await call.desk.at_sites(partial(self.do, call))


def _is_form(request: Request) -> bool:
    return _kind(request) == FORM


def _kind(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _of_another_kind(request: Request, wanted: str) -> Malformed:
    return Malformed(f"the body must be {wanted}, not {_kind(request) or 'of no Content-Type'}")


def _once(kind: type[BaseModel], items: Iterable[tuple[str, Any]], what: str) -> Any:
    """Return what names and values say; a value may be repeated where a list is meant."""
    found: dict[str, Any] = {}
    for name, value in items:
        known = kind.model_fields.get(name)
        if known is not None and str(known.annotation).startswith("list"):
            found.setdefault(name, []).append(value)
        elif name in found:
            raise Malformed(f"{what} names {name} more than once")
        else:
            found[name] = value
    return checked(kind, found, what)


async def _json(request: Request) -> Any:
    content = b""
    async for chunk in request.stream():
        content += chunk
        if len(content) > MOST_JSON_BYTES:
            raise TooLarge(f"a JSON body has at most {MOST_JSON_BYTES:,} bytes")
    try:
        found = json.loads(content or b"{}")
        json.dumps(found, ensure_ascii=False).encode()  # half a character, as \ud800, is no text
        return found
    except (ValueError, RecursionError):
        raise Malformed("the body is no JSON") from None


_WORDS = {"extra_forbidden": "is not known here", "missing": "is missing"}
"""Words for faults in place of pydantic's own."""


def checked(kind: type[BaseModel], value: Any, what: str) -> Any:
    """Return what a request says.

    Raises:
        Malformed: it is not as its description says.
    """
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        faults = [
            f"{'.'.join(map(str, each['loc'])) or what}: "
            f"{_WORDS.get(each['type']) or in_words(each, shown(each['input'], each['loc']))}"
            for each in error.errors()
        ]
        raise Malformed(f"{what} is wrong: {'; '.join(faults)}") from None


def answer(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return JSON."""
    return Response(json_bytes(value), status, headers, JSON)


_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "object"}


def object_of(**members: Any) -> dict[str, Any]:
    """Return the JSON Schema of an object that has all of these members.

    Args:
        members: Each a type, the name of a shape, a schema, or a list with one of these.
    """
    kinds = {name: schema_of_member(kind) for name, kind in members.items()}
    return {"type": "object", "required": [*members], "properties": kinds}


def schema_of_member(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of what `object_of` takes as a member."""
    if isinstance(kind, dict):
        return kind
    if isinstance(kind, list):
        return {"type": "array", "items": schema_of_member(kind[0])}
    if isinstance(kind, str):
        return {"$ref": f"#/components/schemas/{kind}"}
    return {"type": _JSON_TYPES[kind]}


def page_of(shape: str) -> dict[str, Any]:
    """Return the schema of a page of a list."""
    return object_of(items=[shape], next={
        "type": ["string", "null"], "description": "The cursor of the next page."})  # fmt: skip
