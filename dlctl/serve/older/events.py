"""Endpoints that are told of a training's events, for clients of `/v1`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlctl.contract import Endpoint
from dlctl.serve.older import shapes
from dlctl.serve.older.shapes import older
from dlctl.serve.operations import Call, answer
from dlctl.serve.problems import NotFound

if TYPE_CHECKING:
    from starlette.responses import Response


def _told(each: Endpoint) -> shapes.V1Endpoint:
    return {"id": each.id, "url": each.url}


def list_endpoints(call: Call) -> Response:
    """Return the endpoints of an event."""
    from dlctl.service.webhooks import endpoints

    events = shapes.OF_EVENT[call.part("type")]
    with call.training() as (session, record):
        found = {each.id: each for each in endpoints(session, record) if each.event in events}
    return answer({"endpoints": [_told(each) for each in found.values()]})


def change_endpoint(call: Call) -> Response:
    """Return, register or remove an endpoint."""
    from dlctl.service import webhooks

    name, method = call.part("endpoint_id"), call.request.method
    events = shapes.OF_EVENT[call.part("type")]
    with call.training() as (session, record):
        if method == "POST":
            wanted = [Endpoint(name, event, call.body.url) for event in events]
            return answer(_told([webhooks.register(session, record, each) for each in wanted][0]))
        known = [each for each in webhooks.endpoints(session, record)
                 if each.id == name and each.event in events]  # fmt: skip
        if not known:
            raise NotFound(
                f"{record.training_id} has no endpoint {name!r} for {call.part('type')!r}"
            )
        for each in known if method == "DELETE" else ():
            webhooks.unregister(session, record, each.event, name)
        return answer(_told(known[0]))


_EVENT = "/v1/models/{id}/events/{type}"
_ONE = f"{_EVENT}/{{endpoint_id}}"
OPERATIONS = (
    older("GET", _EVENT, "v1_list_endpoints", "Who is told of an event.", list_endpoints,
          parts=shapes.V1OfEvent, answer=shapes.V1Endpoints),
    older("GET", _ONE, "v1_show_endpoint", "An endpoint.", change_endpoint,
          parts=shapes.V1OneEndpoint, answer=shapes.V1Endpoint),
    older("POST", _ONE, "v1_register_endpoint", "Tell a URL of an event from now on.",
          change_endpoint, parts=shapes.V1OneEndpoint, body=shapes.V1Registration,
          answer=shapes.V1Endpoint),
    older("DELETE", _ONE, "v1_remove_endpoint", "Tell an endpoint no more.", change_endpoint,
          parts=shapes.V1OneEndpoint, answer=shapes.V1Endpoint),
)  # fmt: skip
