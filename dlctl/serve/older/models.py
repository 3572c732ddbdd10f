"""The routes of `/v1`: trainings, and endpoints of their events, as these clients know them."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.routing import WebSocketRoute

from dlctl.contract import Endpoint, State
from dlctl.errors import DlctlError
from dlctl.manifest.load import load_manifest
from dlctl.request.request import submitted_with
from dlctl.serve.older import shapes
from dlctl.serve.older.lines import (
    Json,
    date,
    date_of,
    log_rows,
    metric_data,
    metric_rows,
    page,
    send_logs,
    send_metrics,
    socket_of,
)
from dlctl.serve.older.shapes import older
from dlctl.serve.operations import Call, answer
from dlctl.serve.problems import NotFound
from dlctl.serve.results import BYTES, CONTENT, archive
from dlctl.serve.trainings import New, send
from dlctl.serve.uploads import MANIFEST, folder_of
from dlctl.service.fetching import measured

if TYPE_CHECKING:
    from starlette.responses import Response

    from dlctl.manifest.overrides import Overrides
    from dlctl.record import Record
    from dlctl.serve.desk import Desk

_ALL, _ONE = "/v1/models", "/v1/models/{id}"
_EVENT = f"{_ONE}/events/{{type}}"
_ENDPOINT = f"{_EVENT}/{{endpoint_id}}"
_STATUS = {
    State.QUEUED: "QUEUED", State.PENDING: "PENDING", State.DEPLOYING: "PENDING",
    State.DOWNLOADING: "DOWNLOADING", State.STORING: "STORING",
    State.COMPLETED: "COMPLETED", State.FAILED: "FAILED", State.HALTED: "HALTED",
    State.CANCELLED: "HALTED",
}  # fmt: skip
"""Ours by theirs; others run. One that was cancelled has been stopped, and did not fail."""


def sockets_of(desk: Desk) -> list[WebSocketRoute]:
    """Return the routes of WebSockets."""
    return [
        WebSocketRoute(f"{_ONE}/logs", partial(socket_of, desk, send_logs)),
        WebSocketRoute(f"{_ONE}/metrics", partial(socket_of, desk, send_metrics)),
    ]


# Models -------------------------------------------------------------------------------------------


def _submit(call: Call) -> Response:
    text, code = call.body.manifest.encode(), call.body.model_definition
    record = send(call, New(), folder_of(text, code.file if code else None) / MANIFEST)
    where = f"{_ALL}/{record.training_id}"
    made = {"model_id": record.training_id, "location": where}
    return answer(made, 201, {"location": where})


def _list(call: Call) -> Response:
    records = call.desk.mine.store.all()
    call.desk.keep_new(records)
    return answer({"models": [_model(each) for each in records]})


def _show(call: Call) -> Response:
    from dlctl.lifecycle import refresh

    with call.training() as (session, record):
        (known,) = refresh(session, [record], call.desk.mine.store)
    points = [each for _, each in metric_data(measured(call.desk.mine, known))]
    return answer(_model(known) | {"metrics": points[-1:]})


def _halt(call: Call) -> Response:
    from dlctl.service import verbs

    with call.training() as (session, record):
        verbs.act(session, record, call.desk.mine.store, "halt")
    return answer({"model_id": record.training_id}, 202)


def _delete(call: Call) -> Response:
    """Delete a training; one that runs is cancelled first, as these clients expect."""
    from dlctl.service import verbs
    from dlctl.service.client import Filter

    mine, record = call.desk.mine, call.desk.find_now(call.part("id"))
    known = [record]
    if not record.state.final:
        ended = verbs.end(mine, "cancel", [record.training_id], Filter())
        known = ended.known or mine.refreshed(known)[0]
    verbs.delete(mine, known, forget=False).one()
    return answer({"model_id": record.training_id})


def _model(record: Record) -> Json:
    """Return a training as their Model, without any secret of its manifest."""
    where = f"{_ALL}/{record.training_id}"
    manifest = _manifest(record)
    framework, stores = manifest.get("framework", {}), manifest.get("data_stores", [])
    memory = str(manifest.get("memory") or "")
    number = memory.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    return {
        "model_id": record.training_id, "location": where, "name": record.name,
        "description": manifest.get("description") or "",
        "framework": {"name": framework.get("name", ""), "version": framework.get("version") or ""},
        "training": {
            "command": framework.get("command") or "", "cpus": manifest.get("cpus") or 0,
            "gpus": manifest.get("gpus") or 0, "memory": float(number) if number else 0.0,
            "memory_unit": memory[len(number):].strip(), "learners": manifest.get("learners") or 1,
            "input_data": [each["id"] for each in stores if each.get("training_data")],
            "output_data": [each["id"] for each in stores if each.get("training_results")],
            "training_status": {
                "status": _STATUS.get(record.state, "PROCESSING"),
                "status_description": str(record.state),
                "status_message": record.reason, "error_code": "",
                "submitted": date(datetime.fromisoformat(record.created_at)),
                "completed": date_of(record.ended_at) if record.state.final else "",
            },
        },
        "data_stores": [
            {"data_store_id": each["id"], "type": each.get("type", ""), "connection": {}}
            for each in stores
        ],
        "metrics": [],
    }  # fmt: skip


def _manifest(record: Record) -> Json:
    """Return what the manifest says, without credentials; nothing if it is not here any more."""
    try:
        status = Path(record.manifest_path).stat()
        submitted = submitted_with(record)
        return _read(record.manifest_path, submitted, (status.st_mtime_ns, status.st_size))
    except (DlctlError, OSError, ValueError, TypeError):
        return {}


@lru_cache(4096)
def _read(path: str, overrides: Overrides, _stamp: tuple[int, int]) -> Json:
    manifest, _ = load_manifest(Path(path), overrides).extract_secrets()
    found: Json = manifest.model_dump(mode="json")
    return found


# Endpoints of events -----------------------------------------------------------------------------


def _endpoint(each: Endpoint) -> Json:
    return {"id": each.id, "url": each.url}


def _list_endpoints(call: Call) -> Response:
    from dlctl.service.webhooks import endpoints

    events = shapes.OF_EVENT[call.part("type")]
    with call.training() as (session, record):
        found = {each.id: each for each in endpoints(session, record) if each.event in events}
    return answer({"endpoints": [_endpoint(each) for each in found.values()]})


def _change_endpoint(call: Call) -> Response:
    """Return, register or remove an endpoint."""
    from dlctl.service import webhooks

    name, method = call.part("endpoint_id"), call.request.method
    events = shapes.OF_EVENT[call.part("type")]
    with call.training() as (session, record):
        if method == "POST":
            wanted = [Endpoint(name, event, call.body.url) for event in events]
            return answer(
                _endpoint([webhooks.register(session, record, each) for each in wanted][0])
            )
        known = [each for each in webhooks.endpoints(session, record)
                 if each.id == name and each.event in events]  # fmt: skip
        if not known:
            raise NotFound(
                f"{record.training_id} has no endpoint {name!r} for {call.part('type')!r}"
            )
        for each in known if method == "DELETE" else ():
            webhooks.unregister(session, record, each)
        return answer(_endpoint(known[0]))


OPERATIONS = (
    older("POST", _ALL, "v1_submit", "Submit a training.", _submit, form=shapes.V1NewModel,
          answer=shapes.MADE, status=201),
    older("GET", _ALL, "v1_list", "All trainings.", _list, answer=shapes.MODELS),
    older("GET", _ONE, "v1_show", "A training.", _show, answer=shapes.MODEL),
    older("PATCH", _ONE, "v1_halt", "Halt it.", _halt, body=shapes.V1Halt, answer=shapes.CHANGED,
          status=202),
    older("DELETE", _ONE, "v1_delete", "Delete it; one that runs is cancelled first.", _delete,
          answer=shapes.CHANGED),
    older("GET", f"{_ONE}/definition", "v1_definition", "Its code as a ZIP.",
          partial(archive, of="code", media=BYTES), answer=CONTENT, media=(BYTES,),
          may_fail=(410,)),
    older("GET", f"{_ONE}/trained_model", "v1_trained_model", "Its results as a ZIP.",
          partial(archive, of="results", media=BYTES), answer=CONTENT, media=(BYTES,),
          may_fail=(410,)),
    older("GET", "/v1/logs/{id}/loglines", "v1_loglines", "Lines of its logs.",
          partial(page, read=log_rows), query=shapes.V1Page, answer=shapes.LOG_LINES),
    older("GET", "/v1/logs/{id}/emetrics", "v1_emetrics", "What it has measured.",
          partial(page, read=metric_rows), query=shapes.V1Page, answer=shapes.METRICS),
    older("GET", _EVENT, "v1_list_endpoints", "Who is told of an event.", _list_endpoints,
          parts=shapes.V1OfEvent, answer=shapes.ENDPOINTS),
    older("GET", _ENDPOINT, "v1_show_endpoint", "An endpoint.", _change_endpoint,
          parts=shapes.V1OneEndpoint, answer=shapes.ENDPOINT),
    older("POST", _ENDPOINT, "v1_register_endpoint", "Tell a URL of an event from now on.",
          _change_endpoint, parts=shapes.V1OneEndpoint, body=shapes.V1Registration,
          answer=shapes.ENDPOINT),
    older("DELETE", _ENDPOINT, "v1_remove_endpoint", "Tell an endpoint no more.", _change_endpoint,
          parts=shapes.V1OneEndpoint, answer=shapes.ENDPOINT),
)  # fmt: skip
