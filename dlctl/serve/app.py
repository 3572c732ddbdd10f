"""The application: each operation under its path, the description, and the older interface."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cache, partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

import dlctl
from dlctl.errors import DlctlError
from dlctl.serve import others, results, streams, trainings
from dlctl.serve.guard import Guard
from dlctl.serve.older import models
from dlctl.serve.openapi import describe, page
from dlctl.serve.operations import Operation, answer
from dlctl.serve.problems import of_error, refusal

if TYPE_CHECKING:
    from starlette.requests import Request

    from dlctl.serve.desk import Desk

OPERATIONS = (
    *trainings.OPERATIONS, *streams.OPERATIONS, *results.OPERATIONS, *others.OPERATIONS,
    *models.OPERATIONS,
)  # fmt: skip
MOST_BODY_BYTES = 2 << 30
"""The largest body of a request."""


def make_app(desk: Desk, *, token: str | None, hosts: frozenset[str]) -> Starlette:
    """Return the application.

    Args:
        token: What each request needs; None: nothing.
        hosts: As of `Guard`.
    """
    guard = Middleware(Guard, token=token, hosts=hosts, most_body_bytes=MOST_BODY_BYTES)
    app = Starlette(
        routes=[
            *_routes(desk),
            *models.sockets_of(desk),
            Route("/openapi.json", lambda _: answer(describe(OPERATIONS))),
            Route("/docs", lambda _: HTMLResponse(page(describe(OPERATIONS)))),
        ],
        middleware=[guard],
        exception_handlers={
            DlctlError: _problem_of,
            HTTPException: _refused,
            ClientDisconnect: _cut_off,
            Exception: _fault,
        },
    )
    app.router.redirect_slashes = False
    return app


def _routes(desk: Desk) -> Iterator[Route]:
    """Yield a route for each path, which answers 405 and `Allow` to methods that it has not."""
    by_path: dict[str, dict[str, Operation]] = {}
    for each in OPERATIONS:
        by_path.setdefault(each.path, {})[each.method] = each
    for path, by_method in by_path.items():
        route = path.replace("{path}", "{path:path}")
        yield Route(route, partial(_endpoint, desk, by_method), methods=[*by_method])


async def _endpoint(desk: Desk, by_method: dict[str, Operation], request: Request) -> Response:
    if request.method != "HEAD":
        return await by_method[request.method](desk, request)
    response = await by_method["GET"](desk, request)
    if isinstance(response, StreamingResponse):  # it would be read to its end, or for ever
        headers, response = response.raw_headers, Response(status_code=response.status_code)
        response.raw_headers = headers
    return response


def _problem_of(request: Request, error: Exception) -> Response:
    assert isinstance(error, DlctlError)
    return of_error(request.url.path, error)


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers) if error.headers else None
    return refusal(request.url.path, error.status_code, str(error.detail), headers=headers)


def _cut_off(request: Request, error: Exception) -> Response:  # noqa: ARG001
    """Tell a client that sends more than it may; one that has left reads nothing."""
    return refusal(request.url.path, HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                   "the request has more than it may")  # fmt: skip


def _fault(request: Request, error: Exception) -> Response:
    """Tell a fault of ours; if the code below the server has changed, that is why."""
    if code_has_changed():
        return refusal(request.url.path, HTTPStatus.SERVICE_UNAVAILABLE,
                       "dlctl was updated below this server, which still runs the old code",
                       hint="restart it: nothing is lost")  # fmt: skip
    return refusal(request.url.path, HTTPStatus.INTERNAL_SERVER_ERROR,
                   f"{type(error).__name__}: {error}")  # fmt: skip


def _stamp() -> tuple[tuple[str, int, int], ...]:
    folder = Path(dlctl.__file__).parent
    with suppress(OSError):
        files = sorted(folder.rglob("*.py"))
        return tuple((str(p), p.stat().st_mtime_ns, p.stat().st_size) for p in files)
    return ()


@cache
def code_digest() -> tuple[tuple[str, int, int], ...]:
    """Return what tells the code that runs from what an update would put in its place."""
    return _stamp()


def code_has_changed() -> bool:
    """Return whether dlctl was updated below the server."""
    return _stamp() != code_digest()
