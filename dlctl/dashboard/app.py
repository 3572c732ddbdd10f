"""The server's addresses: the page, its data, changes, logs and actions."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocketDisconnect

from dlctl.dashboard.curves import curves, parse_wanted, wanted_steps
from dlctl.dashboard.feed import Refused, Unknown
from dlctl.dashboard.guard import WEBSOCKET_PROTOCOL, Guard
from dlctl.dashboard.report import report
from dlctl.service.verbs import OFFERED
from dlctl.web.connections import until_left

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.websockets import WebSocket

    from dlctl.dashboard.live import LiveFeed

STATIC = Path(__file__).with_name("static")
_BEAT_S = 10.0
"""How often an idle stream of changes says that it lives."""
MOST_BYTES = 64 * 1024
"""The most bytes of an action's arguments, and of a message from a page."""


def make_app(feed: LiveFeed, *, token: str, port: int) -> Starlette:
    """Return the application that shows a feed's trainings to clients that send the token."""
    pages = Pages(feed)
    one = "/api/trainings/{id}"
    routes = [
        Route("/", _page),
        Route("/api/trainings", pages.trainings),
        Route("/api/report", pages.report),
        Route("/api/changes", pages.changes),
        Route(one, pages.details),
        Route(f"{one}/curves", pages.curves),
        Route(f"{one}/search", pages.search),
        Route(f"{one}/{{verb}}", pages.act, methods=["POST"]),
        WebSocketRoute("/ws/trainings/{id}/logs", pages.logs),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    return Starlette(
        routes=routes, middleware=[Middleware(Guard, token=token, port=port)],
        exception_handlers={
            Unknown: lambda _, error: _problem(404, str(error)),
            Refused: lambda _, error: _problem(409, str(error)),
        },
    )  # fmt: skip


def _page(_: Request) -> Response:
    return FileResponse(STATIC / "index.html")


class Pages:
    """The answers to requests; plain methods run in threads, so that none keeps others waiting."""

    def __init__(self, feed: LiveFeed) -> None:
        self._feed = feed

    def trainings(self, _: Request) -> Response:
        """Return all trainings."""
        return _json(self._feed.trainings())

    def details(self, request: Request) -> Response:
        """Return all about one training but its curves."""
        return _json(self._feed.details(request.path_params["id"]))

    def search(self, request: Request) -> Response:
        """Return the trials of a search, and what they tell."""
        return _json(self._feed.search(request.path_params["id"]))

    def curves(self, request: Request) -> Response:
        """Return the columns of a window of a training's curves."""
        try:
            wanted = parse_wanted(request.query_params, request.query_params.getlist("name"))
        except ValueError as error:
            return _problem(400, str(error))
        training_id = request.path_params["id"]
        with self._feed.run(training_id) as run:
            window = wanted_steps(run, wanted)
        self._feed.refine(training_id, *window, wanted.width)
        with self._feed.run(training_id) as run:
            return _json(curves(run, wanted))

    def report(self, request: Request) -> Response:
        """Return the trainings that a page shows as one file that needs no server."""
        text = report(self._feed, request.query_params.getlist("id"))
        return Response(text, media_type="text/html; charset=utf-8")

    async def changes(self, request: Request) -> Response:
        """Stream which trainings have changed, as server-sent events."""
        shown = request.query_params.getlist("id")
        return StreamingResponse(self._changes(shown), media_type="text/event-stream")

    async def _changes(self, shown: list[str]) -> AsyncIterator[str]:
        versions = self._feed.versions
        newest = versions.newest
        with self._feed.look(shown):
            yield "data: []\n\n"
            while not versions.closed:
                await versions.wait(newest, _BEAT_S)
                newest, changed = versions.newest, versions.after(newest)
                yield f"data: {json.dumps(changed)}\n\n" if changed else ": alive\n\n"

    async def logs(self, socket: WebSocket) -> None:
        """Send the log of a training as it grows, until the page leaves."""
        await socket.accept(subprotocol=WEBSOCKET_PROTOCOL)
        await until_left(socket, self._send_log(socket))

    async def _send_log(self, socket: WebSocket) -> None:
        training_id = socket.path_params["id"]
        try:
            with self._feed.look([training_id]):
                async for piece in self._feed.log_pieces(training_id):
                    await socket.send_text(json.dumps(piece))
            await socket.close()
        except (Unknown, Refused) as error:
            await socket.close(1011, str(error)[:100])
        except WebSocketDisconnect:
            return

    async def act(self, request: Request) -> Response:
        """Do what a person asked for."""
        training_id, verb = request.path_params["id"], request.path_params["verb"]
        if verb not in OFFERED:
            return _problem(404, f"nothing here is called {verb!r}")
        body = await _body(request)
        try:
            arguments = None if body is None else json.loads(body or b"{}")
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            return _problem(400, "the arguments of an action are one small JSON object")
        sentence = await run_in_threadpool(self._feed.act, training_id, verb, arguments)
        return _json({"told": sentence})


async def _body(request: Request) -> bytes | None:
    """Return what a request sends; None if that is too much, which is not read."""
    if int(request.headers.get("content-length", 0)) > MOST_BYTES:
        return None
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            return None
    return body


def _json(value: object, status: int = 200) -> Response:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(text.encode(errors="replace"), status, media_type="application/json")


def _problem(status: int, why: str) -> Response:
    return _json({"error": why}, status)
