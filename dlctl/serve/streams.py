"""The operations on what a training tells: its logs and metrics, once or as events."""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from io import BytesIO
from typing import TYPE_CHECKING, Annotated, Any

import anyio
from pydantic import Field
from starlette.responses import Response, StreamingResponse

from dlctl.contract.metrics import parse_metrics_name
from dlctl.errors import DlctlError
from dlctl.logs.one_log import log_of_training
from dlctl.serve.follow import LogSource, MetricsSource, Source
from dlctl.serve.operations import BASE, JSON, Call, Operation, Strict, answer, object_of
from dlctl.serve.problems import Malformed, TooLarge, json_bytes

if TYPE_CHECKING:
    from dlctl.logs.reader import LogPiece
    from dlctl.logs.sieve import Sieve
    from dlctl.record import Record
    from dlctl.series.merged import Entry

EVENTS = "text/event-stream"


class Lines(Strict):
    """Which lines of logs, as of `LinesWanted`."""

    rank: str | None = None
    attempt: Annotated[int | None, Field(ge=1)] = None
    since: str | None = None
    tail: Annotated[int | None, Field(ge=0, le=100_000)] = None
    grep: str | None = None


class Measured(Strict):
    """Which metrics."""

    names: str | None = None
    since_step: Annotated[int, Field(ge=0)] = 0


def begin_at_position(source: Source, position: str) -> None:
    """Go on where a client was.

    Raises:
        Malformed: it is no position of ours.
    """
    try:
        unpack = zlib.decompressobj()
        known = json.loads(unpack.decompress(base64.urlsafe_b64decode(position), 1 << 20))
        for name, size_bytes in known.items():
            is_file = log_of_training(name) or parse_metrics_name(name)
            if not is_file or not 0 <= int(size_bytes) < 1 << 63:
                raise ValueError(name)
            source.skip(name, int(size_bytes))
    except (ValueError, AttributeError, TypeError, OverflowError, RecursionError,
            binascii.Error, zlib.error):  # fmt: skip
        raise Malformed("Last-Event-ID is the id of an event of this stream") from None


async def logs(call: Call) -> Response:
    """Return the logs, or follow them."""
    from dlctl.logs.reader import read
    from dlctl.logs.sieve import Sieve
    from dlctl.service.logs import LinesWanted

    record, wanted = await call.desk.find(call.part("id")), LinesWanted(**dict(call.query))
    position = call.request.headers.get("last-event-id")
    sieve = Sieve(wanted.grep) if wanted.grep else None

    def begin() -> LogSource:
        with call.desk.open(record.site) as session:
            store = call.desk.mine.store
            reader = wanted.reader(session, record, store, begins=not position)[1]
        source = LogSource(reader)
        if position:
            begin_at_position(source, position)
        return source

    def lines_of(pieces: list[LogPiece]) -> list[dict[str, Any]]:
        return [
            {"attempt": piece.attempt, "source": piece.source, "line": line}
            for piece in pieces for line in wanted.of(piece, sieve)
        ]  # fmt: skip

    source = await call.desk.at_sites(begin)
    if call.follows:
        events = _followed(call, record, source, lines_of, sieve)
        return StreamingResponse(events, media_type=EVENTS)

    def whole() -> bytes:
        found = bytearray()
        with call.desk.open(record.site) as session, closing(sieve or BytesIO()):
            for piece in read(session.transport, source.reader):
                for line in wanted.of(piece, sieve):
                    found += f"{piece.source} | {line}\n".encode(errors="replace")
                if len(found) > 64 << 20:
                    raise TooLarge("the logs have more than 64 MiB: ask for ?tail=, or follow them")
        return bytes(found)

    return Response(await call.desk.at_sites(whole), media_type="text/plain; charset=utf-8")


async def _followed(
    call: Call, record: Record, source: Source, plain: Callable[[list[Any]], list[Any]],
    sieve: Sieve | None = None,
) -> AsyncIterator[bytes]:  # fmt: skip
    """Yield events, the last of which tells how the training has ended."""
    try:
        async for batch in call.desk.followers.follow(record, source):
            if batch is None:
                yield b": alive\n\n"
            elif items := await anyio.to_thread.run_sync(plain, batch.pieces):
                yield b"id: %b\ndata: %b\n\n" % (batch.position.encode(), json_bytes(items))
        state = (await call.desk.find(record.training_id)).state
        if state.final:
            yield b"event: end\ndata: %b\n\n" % json_bytes({"state": str(state)})
    except DlctlError as error:
        problem = {"detail": error.message, "hint": error.hint}
        yield b"event: problem\ndata: %b\n\n" % json_bytes(problem)
    finally:
        if sieve is not None:
            sieve.close()


async def metrics(call: Call) -> Response:
    """Return what was measured, as columns; or follow it."""
    from dlctl.outputs.metrics.formats import chosen
    from dlctl.series.merged import columns_of
    from dlctl.service.fetching import measured

    record, query = await call.desk.find(call.part("id")), call.query
    if call.follows:
        list(chosen([], query.since_step, query.names))  # refuses a wrong pattern now
        source = MetricsSource(record)
        if position := call.request.headers.get("last-event-id"):
            begin_at_position(source, position)

        def plain(entries: list[Entry]) -> list[dict[str, Any]]:
            return [each.plain() for each in chosen(entries, query.since_step, query.names)]

        return StreamingResponse(_followed(call, record, source, plain), media_type=EVENTS)

    def do() -> dict[str, Any]:
        entries = measured(call.desk.mine, record, call.query.since_step, call.query.names)
        return {
            name: [None if each != each else each for each in column]  # NaN, which JSON has not
            for name, column in columns_of(entries).items()
        }  # fmt: skip

    return answer({"columns": await call.desk.at_sites(do)})


_ONE = f"{BASE}/trainings/{{id}}"
OPERATIONS = (
    Operation("GET", f"{_ONE}/logs", "read_logs", "The logs, merged by time; as events they are "
              "followed, and Last-Event-ID goes on without a gap or a repeat.", logs, Lines,
              answer={"type": "string"}, media=("text/plain", EVENTS), may_fail=(404, 413)),
    Operation("GET", f"{_ONE}/metrics", "read_metrics", "What was measured, as columns of one "
              "length; as events it is followed, a list of records each.", metrics, Measured,
              media=(JSON, EVENTS), may_fail=(404,),
              answer=object_of(columns={
                  "type": "object", "additionalProperties": {"type": "array", "items": {}}})),
)  # fmt: skip
