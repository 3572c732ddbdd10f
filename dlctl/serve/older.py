"""`/v1`: the routes of the service's open successor (FfDL), for its own clients.

Where its published description and its command-line client differ, this does what the client reads:
numbers for the time of a line, times that grow strictly from line to line, frames of at most 8 KiB.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.datastructures import UploadFile
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocketDisconnect

from dlctl.contract import State
from dlctl.contract.metrics import NO_STEP
from dlctl.errors import DlctlError, Misused
from dlctl.manifest.load import load_manifest
from dlctl.manifest.overrides import Overrides
from dlctl.serve.operations import Call, answer
from dlctl.serve.problems import NotFound, older_problem, status_of
from dlctl.serve.results import zipped
from dlctl.serve.trainings import New, send
from dlctl.serve.uploads import MANIFEST, folder_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.websockets import WebSocket

    from dlctl.record import Record
    from dlctl.serve.desk import Desk

BASE = "/v1/"
Json = dict[str, Any]
_STATUS = {
    State.QUEUED: "QUEUED", State.PENDING: "PENDING", State.DEPLOYING: "PENDING",
    State.DOWNLOADING: "DOWNLOADING", State.TRAINING: "PROCESSING", State.STORING: "STORING",
    State.COMPLETED: "COMPLETED", State.FAILED: "FAILED", State.HALTED: "HALTED",
    State.CANCELLED: "HALTED",
}  # fmt: skip
"""Ours by theirs: one that was cancelled has been stopped, and did not fail."""
_FRAME_BYTES = 8 * 1024
_MOST_ROWS = 10_000


def routes_of(desk: Desk) -> list[Route | WebSocketRoute]:
    """Return the routes."""
    one = "/v1/models/{id}"
    table: tuple[tuple[str, str, Callable[[Desk, Request], Awaitable[Response]]], ...] = (
        ("POST", "/v1/models", _submit), ("GET", "/v1/models", _list), ("GET", one, _show),
        ("PATCH", one, _change), ("DELETE", one, _delete),
        ("GET", f"{one}/definition", partial(_archive, of="code")),
        ("GET", f"{one}/trained_model", partial(_archive, of="results")),
        ("GET", "/v1/logs/{id}/loglines", _loglines), ("GET", "/v1/logs/{id}/emetrics", _emetrics),
    )  # fmt: skip
    found: list[Route | WebSocketRoute] = [
        Route(path, _told(partial(do, desk)), methods=[method]) for method, path, do in table
    ]
    found.append(WebSocketRoute(f"{one}/logs", partial(_socket, desk, _send_logs)))
    found.append(WebSocketRoute(f"{one}/metrics", partial(_socket, desk, _send_metrics)))
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
        newest = list(_metric_data(desk, known))[-1:]
        return _model(known) | {"metrics": [_without_time(each) for each in newest]}

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
                "submitted": _date(datetime.fromisoformat(record.created_at)),
                "completed": _date_of(record.ended_at) if record.state.final else "",
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


def _date(at: datetime) -> str:
    """Return a time in the one form in which the client shows it."""
    at = at.astimezone(timezone.utc)
    return at.strftime("%Y-%m-%d %H:%M:%S.") + f"{at.microsecond // 1000:03d} +0000 UTC"


def _date_of(unix_s: float) -> str:
    return _date(datetime.fromtimestamp(unix_s, timezone.utc)) if unix_s else ""


# Lines and metrics by pages -----------------------------------------------------------------------


async def _loglines(desk: Desk, request: Request) -> Response:
    record = desk.find(request.path_params["id"])
    return await _page(desk, request, partial(_log_rows, desk, record))


async def _emetrics(desk: Desk, request: Request) -> Response:
    record = desk.find(request.path_params["id"])
    return await _page(desk, request, partial(_metric_rows, desk, record))


async def _page(desk: Desk, request: Request, read: Callable[[], list[Json]]) -> Response:
    """Return the rows that a client asks for by place, or by time."""
    query = request.query_params
    rows = await desk.at_sites(read)
    size, pos = _whole(query, "pagesize", _MOST_ROWS), _whole(query, "pos", 0)
    since = query.get("since_time", "")
    if since.startswith("-"):
        rows = rows[_whole(query, "since_time", 0) :]
    elif since:
        at_ms = _milliseconds(since)
        rows = [row for row in rows if row["meta"]["time"] >= at_ms]
    rows = rows[max(0, len(rows) + pos) if pos < 0 else pos :][: max(0, min(size, _MOST_ROWS))]
    return answer({"models": rows})


def _whole(query: Mapping[str, str], name: str, default: int) -> int:
    try:
        return int(query.get(name) or default)
    except ValueError:
        raise Misused(f"{name} is a whole number") from None


def _milliseconds(text: str) -> float:
    if text.isdecimal():
        return float(text)
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000
    except ValueError:
        raise Misused("since_time is RFC 3339, or milliseconds since 1970") from None


def _log_rows(desk: Desk, record: Record) -> list[Json]:
    """Return all lines with times that grow strictly, and are the same at each call."""
    from dlctl.logs.reader import LogReader, read

    found, newest_ms = list[Json](), 0
    with desk.open(record.site) as session:
        for piece in read(session.transport, LogReader(record.job_dir)):
            for line, at in piece.timed_lines():
                if at is None and not record.state.final:
                    return found  # a note on when it was written comes soon
                newest_ms = max(newest_ms + 1, round((at or 0.0) * 1000))
                text = line.decode(errors="replace")
                found.append({"meta": _meta(record, newest_ms, len(found)), "line": text})
    return found


def _metric_rows(desk: Desk, record: Record) -> list[Json]:
    rows, newest_ms = list[Json](), 0
    for data in _metric_data(desk, record):
        newest_ms = max(newest_ms + 1, data["time_ms"])
        rows.append({
            "meta": _meta(record, newest_ms, len(rows)), "grouplabel": data["type"],
            "etimes": {"iteration": {"type": "INT", "value": str(data["iteration"])}},
            "values": {name: _any(value) for name, value in data["Values"].items()},
        })  # fmt: skip
    return rows


def _any(value: float | str | None) -> Json:
    kind = "STRING" if isinstance(value, str) else "FLOAT"
    return {"type": kind, "value": "NaN" if value is None else str(value)}


def _meta(record: Record, time_ms: int, number: int) -> Json:
    return {"training_id": record.training_id, "user_id": "", "time": time_ms, "rindex": number}


def _metric_data(desk: Desk, record: Record) -> Iterator[Json]:
    """Yield their MetricData, with the time as a number beside it."""
    from dlctl.contract.metrics import Source
    from dlctl.series.merged import by_group
    from dlctl.service.bringing import measured

    for entry in (each for whole in measured(desk.mine, record) for each in by_group(whole)):
        line = entry.line
        if line.event or entry.origin.source is Source.NODE:
            continue
        yield {
            "type": line.group or "train", "timestamp": _date_of(line.time or 0.0),
            "iteration": 0 if line.step == NO_STEP else line.step,
            "Values": line.values | line.texts, "time_ms": round((line.time or 0.0) * 1000),
        }  # fmt: skip


def _without_time(data: Json) -> Json:
    return {name: value for name, value in data.items() if name != "time_ms"}


# Streams ------------------------------------------------------------------------------------------

Frames = Callable[["Desk", "Record", bool], AsyncIterator[str]]


async def _socket(desk: Desk, frames: Frames, socket: WebSocket) -> None:
    """Send frames until there are no more; the end is a normal close."""
    offered = socket.scope.get("subprotocols") or [None]
    try:
        record = desk.find(socket.path_params["id"])
    except NotFound:
        return await socket.close(1008)
    await socket.accept(subprotocol=offered[0])
    follows = socket.query_params.get("follow", "true").lower() != "false"
    try:
        async for frame in frames(desk, record, follows):
            await socket.send_text(frame)
        await socket.close(1000)
    except DlctlError as error:
        await socket.close(1011, error.message[:100])
    except WebSocketDisconnect:
        pass
    return None


async def _send_logs(desk: Desk, record: Record, follows: bool) -> AsyncIterator[str]:
    from dlctl.logs.reader import LogReader

    if not follows:
        rows = await desk.at_sites(partial(_log_rows, desk, record))
        for frame in _frames("".join(f"{row['line']}\n" for row in rows)):
            yield frame
        return
    async for batch in desk.followers.follow(record, LogReader(record.job_dir)):
        for piece in batch.pieces if batch else ():
            for frame in _frames(piece.content.decode(errors="replace")):
                yield frame


def _frames(text: str) -> Iterator[str]:
    """Yield parts of at most 8 KiB that end where a character does."""
    content = text.encode(errors="replace")
    while content:
        part = content[:_FRAME_BYTES]
        while len(part) < len(content) and content[len(part)] & 0xC0 == 0x80:  # noqa: PLR2004
            part = part[:-1]
        yield part.decode(errors="replace")
        content = content[len(part) :]


async def _send_metrics(desk: Desk, record: Record, follows: bool) -> AsyncIterator[str]:
    sent = 0
    while True:
        known = desk.find(record.training_id)
        desk.keep_new([known])
        found: list[Json] = await desk.at_sites(partial(list, _metric_data(desk, known)))
        for each in found[sent:]:
            yield json.dumps(_without_time(each))
        sent = max(sent, len(found))
        if known.state.final or not follows or desk.followers.is_closed:
            return
        await desk.followers.pause(2.0)
