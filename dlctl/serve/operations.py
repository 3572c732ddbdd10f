"""One table of operations, from which routes and their description are made.

An operation names the types of what it takes: they check a request, and they describe it.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.responses import Response

from dlctl.errors import Misused
from dlctl.serve.problems import TooLarge, json_bytes

if TYPE_CHECKING:
    from starlette.requests import Request

    from dlctl.serve.desk import Desk

JSON = "application/json"
MOST_JSON_BYTES = 1 << 20


class Strict(BaseModel):
    """What a request says; a name that is none is refused."""

    model_config = ConfigDict(extra="forbid")


class Nothing(Strict):
    """A request that says nothing."""


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

    @property
    def key(self) -> str | None:
        """Return the idempotency key.

        Raises:
            Misused: it is too long, or not printable.
        """
        key = self.request.headers.get("idempotency-key")
        if key is not None and not (0 < len(key) <= 200 and key.isascii() and key.isprintable()):
            raise Misused("an Idempotency-Key has 1 to 200 printable ASCII characters")
        return key

    @property
    def follows(self) -> bool:
        """Return whether the client asks for a stream of events."""
        return "text/event-stream" in self.request.headers.get("accept", "")


Do = Callable[[Call], Awaitable[Response]]


@dataclass(frozen=True)
class Operation:
    """One method of one path."""

    method: str
    path: str
    name: str
    summary: str
    do: Do
    query: type[Strict] = Nothing
    body: type[Strict] | None = None
    answer: str | dict[str, Any] = field(default_factory=dict)
    """The name of a shape of `dlctl schema`, or a JSON Schema."""
    status: int = 200
    media: Sequence[str] = (JSON,)
    uploads: bool = False
    """Whether the body may be a form with files, too."""
    has_key: bool = False
    may_fail: Sequence[int] = ()
    """The statuses with which it may refuse, besides those of all operations."""

    async def __call__(self, desk: Desk, request: Request) -> Response:
        """Check a request, and do what it asks for."""
        query = checked(self.query, _query_of(request, self.query), "the query")
        body = None
        if self.body is not None and not (self.uploads and _is_form(request)):
            body = checked(self.body, await _json(request), "the body")
        return await self.do(Call(desk, request, query, body))


def _is_form(request: Request) -> bool:
    return request.headers.get("content-type", "").startswith("multipart/form-data")


def _query_of(request: Request, kind: type[Strict]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in dict.fromkeys(request.query_params):
        values = request.query_params.getlist(name)
        known = kind.model_fields.get(name)
        many = known is not None and "list" in str(known.annotation)
        if not many and len(values) > 1:
            raise Misused(f"the query names {name} {len(values)} times")
        found[name] = values if many else values[0]
    return found


async def _json(request: Request) -> Any:
    if request.headers.get("content-type", "").partition(";")[0].strip() not in (JSON, ""):
        raise Misused(f"the body is {JSON}")
    content = b""
    async for chunk in request.stream():
        content += chunk
        if len(content) > MOST_JSON_BYTES:
            raise TooLarge(f"a JSON body has at most {MOST_JSON_BYTES:,} bytes")
    try:
        return json.loads(content or b"{}")
    except (ValueError, RecursionError):
        raise Misused("the body is no JSON") from None


def checked(kind: type[Strict], value: Any, what: str) -> Any:
    """Return what a request says.

    Raises:
        Misused: it is not as its description says.
    """
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        faults = [
            f"{'.'.join(map(str, each['loc'])) or what}: {each['msg']}" for each in error.errors()
        ]
        raise Misused(f"{what} is wrong: {'; '.join(faults)}") from None


def answer(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return JSON."""
    return Response(json_bytes(value), status, headers, JSON)
