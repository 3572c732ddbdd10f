"""The routes of `/v1`, and trainings as these clients know them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.datastructures import UploadFile
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute

from dlctl.contract import State
from dlctl.errors import DlctlError, Misused
from dlctl.manifest.load import load_manifest
from dlctl.manifest.overrides import Overrides
from dlctl.serve.older import events
from dlctl.serve.older.lines import (
    Json,
    date,
    date_of,
    emetrics,
    loglines,
    metric_data,
    send_logs,
    send_metrics,
    socket_of,
    without_time,
)
from dlctl.serve.operations import Call, answer
from dlctl.serve.problems import older_problem, status_of
from dlctl.serve.results import zipped
from dlctl.serve.trainings import New, send
from dlctl.serve.uploads import MANIFEST, folder_of

if TYPE_CHECKING:
    from starlette.requests import Request

    from dlctl.record import Record
    from dlctl.serve.desk import Desk

BASE = "/v1/"
_STATUS = {
    State.QUEUED: "QUEUED", State.PENDING: "PENDING", State.DEPLOYING: "PENDING",
    State.DOWNLOADING: "DOWNLOADING", State.TRAINING: "PROCESSING", State.STORING: "STORING",
    State.COMPLETED: "COMPLETED", State.FAILED: "FAILED", State.HALTED: "HALTED",
    State.CANCELLED: "HALTED",
}  # fmt: skip
"""Ours by theirs: one that was cancelled has been stopped, and did not fail."""


def routes_of(desk: Desk) -> list[Route | WebSocketRoute]:
    """Return the routes."""
    one = "/v1/models/{id}"
    table: tuple[tuple[str, str, Callable[[Desk, Request], Awaitable[Response]]], ...] = (
        ("POST", "/v1/models", _submit), ("GET", "/v1/models", _list), ("GET", one, _show),
        ("PATCH", one, _change), ("DELETE", one, _delete),
        ("GET", f"{one}/definition", partial(_archive, of="code")),
        ("GET", f"{one}/trained_model", partial(_archive, of="results")),
        ("GET", "/v1/logs/{id}/loglines", loglines), ("GET", "/v1/logs/{id}/emetrics", emetrics),
        ("GET", events.PATH, events.list_endpoints),
        *((method, f"{events.PATH}/{{endpoint_id}}", events.change_endpoint)
          for method in ("GET", "POST", "DELETE")),
    )  # fmt: skip
    found: list[Route | WebSocketRoute] = [
        Route(path, _told(partial(do, desk)), methods=[method]) for method, path, do in table
    ]
    found.append(WebSocketRoute(f"{one}/logs", partial(socket_of, desk, send_logs)))
    found.append(WebSocketRoute(f"{one}/metrics", partial(socket_of, desk, send_metrics)))
    return found


def _told(do: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            return await do(request)
        except DlctlError as error:
            status = status_of(error)
            return older_problem(400 if status == 422 else status, error.message, error.hint)  # noqa: PLR2004

    return endpoint


# Models -------------------------------------------------------------------------------------------


async def _submit(desk: Desk, request: Request) -> Response:
    async with request.form(max_files=2, max_fields=4, max_part_size=1 << 20) as form:
        manifest, code = form.get("manifest"), form.get("model_definition")
        if manifest is None:
            raise Misused("the part manifest is missing")
        text = manifest.encode() if isinstance(manifest, str) else await manifest.read(1 << 20)

        def do() -> Record:
            file = code.file if isinstance(code, UploadFile) else None
            return send(Call(desk, request), New(), folder_of(text, file) / MANIFEST)

        record = await desk.at_sites(do)
    where = f"/v1/models/{record.training_id}"
    made = {"model_id": record.training_id, "location": where}
    return answer(made, 201, {"location": where})


async def _list(desk: Desk, _: Request) -> Response:
    records = desk.records()
    desk.keep_new(records)
    return answer({"models": await desk.at_sites(lambda: [_model(each) for each in records])})


async def _show(desk: Desk, request: Request) -> Response:
    from dlctl.lifecycle import refresh

    record = desk.find(request.path_params["id"])

    def do() -> Json:
        with desk.open(record.site) as session:
            (known,) = refresh(session, [record], desk.mine.store)
        newest = list(metric_data(desk, known))[-1:]
        return _model(known) | {"metrics": [without_time(each) for each in newest]}

    return answer(await desk.at_sites(do))


async def _change(desk: Desk, request: Request) -> Response:
    from dlctl.service import verbs
    from dlctl.service.client import Filter

    record = desk.find(request.path_params["id"])
    try:
        wanted = json.loads(await request.body())
    except ValueError:
        wanted = None
    if not isinstance(wanted, dict) or str(wanted.get("status", "")).lower() != "halt":
        raise Misused('the body is {"status": "halt"}')

    def do() -> None:
        done = verbs.end(desk.mine, "halt", [record.training_id], Filter())
        if done.failures:
            raise done.failures[0]

    await desk.at_sites(do)
    return answer({"model_id": record.training_id}, 202)


async def _delete(desk: Desk, request: Request) -> Response:
    """Delete a training; one that runs is cancelled first, as these clients expect."""
    from dlctl.service import verbs
    from dlctl.service.client import Filter

    record = desk.find(request.path_params["id"])

    def do() -> None:
        known = [record]
        if not record.state.final:
            ended = verbs.end(desk.mine, "cancel", [record.training_id], Filter())
            known = ended.known or desk.mine.refreshed(known)[0]
        done = verbs.delete(desk.mine, known, forget=False)
        if done.failures:
            raise done.failures[0]

    await desk.at_sites(do)
    return answer({"model_id": record.training_id})


async def _archive(desk: Desk, request: Request, *, of: str) -> Response:
    record = desk.find(request.path_params["id"])
    content = zipped(Call(desk, request), record, of)
    return StreamingResponse(content, media_type="application/octet-stream")


def _model(record: Record) -> Json:
    """Return a training as their Model, without any secret of its manifest."""
    where = f"/v1/models/{record.training_id}"
    said = _said(record)
    framework, stores = said.get("framework", {}), said.get("data_stores", [])
    memory = str(said.get("memory") or "")
    number = memory.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    return {
        "model_id": record.training_id, "location": where, "name": record.name,
        "description": said.get("description") or "",
        "framework": {"name": framework.get("name", ""), "version": framework.get("version") or ""},
        "training": {
            "command": framework.get("command") or "", "cpus": said.get("cpus") or 0,
            "gpus": said.get("gpus") or 0, "memory": float(number) if number else 0.0,
            "memory_unit": memory[len(number):].strip(), "learners": said.get("learners") or 1,
            "input_data": [each["id"] for each in stores if each.get("training_data")],
            "output_data": [each["id"] for each in stores if each.get("training_results")],
            "training_status": {
                "status": _STATUS[record.state], "status_description": str(record.state),
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


def _said(record: Record) -> Json:
    """Return what the manifest says, without credentials; nothing if it is not here any more."""
    try:
        overrides = json.loads(record.overrides)
        overrides["set"] = tuple(overrides.get("set", ()))
        manifest, _ = load_manifest(
            Path(record.manifest_path), Overrides(**overrides)
        ).extract_secrets()
        found: Json = manifest.model_dump(mode="json")
    except (DlctlError, OSError, ValueError, TypeError):
        return {}
    return found
