"""The application: each operation under its path, the description, and the older interface."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from dlctl.errors import DlctlError
from dlctl.serve import others, results, streams, trainings
from dlctl.serve.guard import Guard
from dlctl.serve.older import models
from dlctl.serve.openapi import BASE, describe, page
from dlctl.serve.operations import Operation, answer
from dlctl.serve.problems import of_error, older_problem, problem
from dlctl.serve.updates import code_has_changed

if TYPE_CHECKING:
    from starlette.requests import Request

    from dlctl.serve.desk import Desk

OPERATIONS = (
    *trainings.OPERATIONS, *streams.OPERATIONS, *results.OPERATIONS, *others.OPERATIONS,
)  # fmt: skip
MOST_BODY_BYTES = 2 << 30


def make_app(
    desk: Desk, *, token: str | None, hosts: frozenset[str], most_body_bytes: int | None = None
) -> Starlette:
    """Return the application.

    Args:
        token: What each request needs; None: nothing.
        hosts: As of `Guard`.
        most_body_bytes: What a request may send; `MOST_BODY_BYTES` by default.
    """
    guard = Middleware(Guard, token=token, hosts=hosts,
                       most_body_bytes=most_body_bytes or MOST_BODY_BYTES)  # fmt: skip
    return Starlette(
        routes=[
            *(_route(desk, each) for each in OPERATIONS),
            *models.routes_of(desk),
            Route("/openapi.json", lambda _: answer(describe(OPERATIONS))),
            Route("/docs", lambda _: HTMLResponse(page(describe(OPERATIONS)))),
        ],
        middleware=[guard],
        exception_handlers={
            DlctlError: _told,
            HTTPException: _refused,
            ClientDisconnect: _cut_off,
            Exception: _fault,
        },
    )


def _route(desk: Desk, each: Operation) -> Route:
    async def endpoint(request: Request) -> Response:
        return await each(desk, request)

    path = each.path.replace("{path}", "{path:path}")
    return Route(BASE + path, endpoint, methods=[each.method], name=each.name)


def _told(_: Request, error: Exception) -> Response:
    assert isinstance(error, DlctlError)
    return of_error(error)


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers) if error.headers else None
    if request.url.path.startswith(models.BASE):
        return older_problem(error.status_code, str(error.detail), headers=headers)
    return problem(error.status_code, str(error.detail), headers=headers)


def _cut_off(_: Request, error: Exception) -> Response:  # noqa: ARG001
    """Tell a client that sends more than it may; one that has left reads nothing."""
    return problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the request has more than it may")


def _fault(_: Request, error: Exception) -> Response:
    """Tell a fault of ours; if the code below the server has changed, that is why."""
    if code_has_changed():
        return problem(HTTPStatus.SERVICE_UNAVAILABLE,
                       "dlctl was updated below this server, which still runs the old code",
                       hint="restart it: nothing is lost")  # fmt: skip
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")
