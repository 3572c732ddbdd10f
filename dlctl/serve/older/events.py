"""Endpoints that are told of a training's events, for clients of `/v1`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from dlctl.contract import Endpoint
from dlctl.errors import Misused, RecordError
from dlctl.serve.operations import answer
from dlctl.serve.problems import NotFound

if TYPE_CHECKING:
    from starlette.requests import Request

    from dlctl.serve.desk import Desk

PATH = "/v1/models/{id}/events/{type}"


def _told(each: Endpoint) -> dict[str, str]:
    return {"id": each.id, "url": each.url}


async def list_endpoints(desk: Desk, request: Request) -> Response:
    """Return the endpoints of an event."""
    from dlctl.service.webhooks import endpoints

    record, event = desk.find(request.path_params["id"]), request.path_params["type"]

    def do() -> list[Endpoint]:
        with desk.open(record.site) as session:
            return endpoints(session, record, event)

    return answer({"endpoints": [_told(each) for each in await desk.at_sites(do)]})


async def change_endpoint(desk: Desk, request: Request) -> Response:
    """Return, register or remove an endpoint."""
    from dlctl.service import webhooks

    asked, record = request.path_params, desk.find(request.path_params["id"])
    event, name, url = asked["type"], asked["endpoint_id"], ""
    if request.method == "POST":
        url = _url(await request.body())

    def do() -> Endpoint:
        with desk.open(record.site) as session:
            if request.method == "POST":
                return webhooks.register(session, record, Endpoint(name, event, url))
            try:
                if request.method == "DELETE":
                    return webhooks.unregister(session, record, event, name)
                return webhooks.endpoint(session, record, event, name)
            except RecordError as error:
                raise NotFound(error.message) from error

    return answer(_told(await desk.at_sites(do)))


def _url(body: bytes) -> str:
    try:
        said: Any = json.loads(body)
    except ValueError:
        said = None
    if not isinstance(said, dict) or not isinstance(said.get("url"), str):
        raise Misused('the body is {"url": "https://…"}')
    return str(said["url"])
