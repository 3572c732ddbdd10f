"""Lines of logs and metrics as these clients page through them, and as frames of WebSockets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.responses import Response
from starlette.websockets import WebSocketDisconnect

from dlctl.contract.metrics import NO_STEP, Source
from dlctl.errors import DlctlError
from dlctl.series.merged import Entry, by_group
from dlctl.serve.follow import LogSource, MetricsSource
from dlctl.serve.operations import Call, answer
from dlctl.serve.problems import NotFound
from dlctl.service.fetching import measured
from dlctl.web.connections import until_left

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

    from dlctl.record import Record
    from dlctl.serve.desk import Desk

Json = dict[str, Any]
_FRAME_BYTES = 8 * 1024
_MOST_ROWS = 10_000


def date(at: datetime) -> str:
    """Return a time in the one form in which the client shows it."""
    at = at.astimezone(timezone.utc)
    return at.strftime("%Y-%m-%d %H:%M:%S.") + f"{at.microsecond // 1000:03d} +0000 UTC"


def date_of(unix_s: float) -> str:
    """Return a time in that form; empty if it is not known."""
    return date(datetime.fromtimestamp(unix_s, timezone.utc)) if unix_s else ""


def page(call: Call, read: Callable[[Desk, Record], list[Json]]) -> Response:
    """Return the rows that a client asks for by place, or by time."""
    query, record = call.query, call.desk.find_now(call.part("id"))
    rows = read(call.desk, record)
    since = query.since_ms
    if since is not None:
        rows = rows[int(since) :] if since < 0 else [
            row for row in rows if row["meta"]["time"] >= since]  # fmt: skip
    begin = max(0, len(rows) + query.pos) if query.pos < 0 else query.pos
    return answer({"models": rows[begin : begin + min(query.pagesize, _MOST_ROWS)]})


def log_rows(desk: Desk, record: Record) -> list[Json]:
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


def metric_rows(desk: Desk, record: Record) -> list[Json]:
    """Return what was measured, with times that grow strictly."""
    rows, newest_ms = list[Json](), 0
    for time_ms, data in metric_data(measured(desk.mine, record)):
        newest_ms = max(newest_ms + 1, time_ms)
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


def metric_data(entries: Iterable[Entry]) -> Iterator[tuple[int, Json]]:
    """Yield times in milliseconds, each with what these clients call MetricData."""
    for entry in (each for whole in entries for each in by_group(whole)):
        line = entry.line
        if line.event or entry.origin.source is Source.NODE:
            continue
        yield round((line.time or 0.0) * 1000), {
            "type": line.group or "train", "timestamp": date_of(line.time or 0.0),
            "iteration": 0 if line.step == NO_STEP else line.step,
            "Values": line.values | line.texts,
        }  # fmt: skip


# Streams ------------------------------------------------------------------------------------------

Frames = Callable[["Desk", "Record", bool], AsyncIterator[str]]


async def socket_of(desk: Desk, frames: Frames, socket: WebSocket) -> None:
    """Send frames until there are no more; the end is a normal close."""
    offered = socket.scope.get("subprotocols") or [None]
    try:
        record = await desk.find(socket.path_params["id"])
    except NotFound:
        return await socket.close(1008)
    await socket.accept(subprotocol=offered[0])
    follows = socket.query_params.get("follow", "true").lower() != "false"
    return await until_left(socket, _send(socket, frames(desk, record, follows)))


async def _send(socket: WebSocket, frames: AsyncIterator[str]) -> None:
    try:
        async for frame in frames:
            await socket.send_text(frame)
        await socket.close(1000)
    except DlctlError as error:
        await socket.close(1011, error.message[:100])
    except WebSocketDisconnect:
        pass


async def send_logs(desk: Desk, record: Record, follows: bool) -> AsyncIterator[str]:
    """Yield the logs as frames."""
    from dlctl.logs.reader import LogReader

    if not follows:
        rows = await desk.at_sites(partial(log_rows, desk, record))
        for frame in _frames("".join(f"{row['line']}\n" for row in rows)):
            yield frame
        return
    async for batch in desk.followers.follow(record, LogSource(LogReader(record.job_dir))):
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


async def send_metrics(desk: Desk, record: Record, follows: bool) -> AsyncIterator[str]:
    """Yield what is measured, each as a frame."""
    if not follows:
        for _, each in await desk.at_sites(lambda: [*metric_data(measured(desk.mine, record))]):
            yield json.dumps(each)
        return
    async for batch in desk.followers.follow(record, MetricsSource(record)):
        for _, each in metric_data(batch.pieces if batch else ()):
            yield json.dumps(each)
