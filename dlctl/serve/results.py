"""The operations on what a training has made: a list, a file, or part of it, all as a ZIP."""

from __future__ import annotations

import re
import shlex
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from hashlib import sha256
from io import BytesIO, UnsupportedOperation
from itertools import chain
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from dlctl.contract import CODE, tell_output
from dlctl.contract.sent_files import SENT_INDEX
from dlctl.errors import TransferError
from dlctl.files.listing import SiteFile, list_files
from dlctl.files.made import look_at_made
from dlctl.outputs.fetch import results_folder
from dlctl.record import GONE
from dlctl.serve.operations import BASE, Call, Operation, Strict, answer, object_of
from dlctl.serve.problems import Gone, NotFound, refusal

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.record import Record

_CHUNK_BYTES = 1 << 18
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")
BYTES = "application/octet-stream"
ZIP = "application/zip"


class Which(Strict):
    """Which files."""

    of: Literal["results", "code", "output"] = "results"
    """`output`: what the program has written into its own folder."""


def folder_at_site(session: Session, record: Record, of: str = "results") -> str:
    """Return the folder at the site with results, or with the code that was sent.

    Raises:
        Gone: somebody has removed the training's files there.
    """
    if record.is_gone:
        raise Gone(f"{record.training_id}: {GONE} {record.site}")
    if of in ("code", "output"):
        return f"{record.job_dir}/{CODE}"
    return results_folder(session.transport, record)


def files_of(session: Session, record: Record, of: str = "results") -> tuple[str, list[SiteFile]]:
    """Return the folder, and the regular files in it."""
    folder = folder_at_site(session, record, of)
    if of == "output":
        _, made = look_at_made(session.transport, record.job_dir)
        own = [replace(each, path=each.path[len(CODE) + 1 :]) for each in made
               if each.path.startswith(f"{CODE}/")]  # fmt: skip
        return folder, sorted(own, key=lambda each: each.path)
    parent, _, name = folder.rstrip("/").rpartition("/")
    found = list_files(session.transport, parent, [name], missing_ok=True)
    cut = len(name) + 1
    files = [
        SiteFile(each.path[cut:], "f", each.size_bytes, each.sha256, each.stamp)
        for each in found
        if each.kind == "f" and len(each.path) > cut and each.path[cut:] != SENT_INDEX
    ]  # fmt: skip
    return folder.rstrip("/"), sorted(files, key=lambda each: each.path)


def etag(file: SiteFile) -> str:
    """Return what changes with a file's content."""
    return f'"{sha256(file.identity.encode()).hexdigest()[:32]}"'


def list_(call: Call) -> Response:
    """Return the files."""
    with call.training() as (session, record):
        _, files = files_of(session, record, call.query.of)
        output = tell_output(record.made.output) if record.made else ""
    where = "results/files/"  # relative to the list, which a proxy may have elsewhere
    which = "" if call.query.of == "results" else f"?of={call.query.of}"
    items = [{"path": each.path, "size_bytes": each.size_bytes, "etag": etag(each),
              "href": where + quote(each.path, errors="replace") + which}
             for each in files]  # fmt: skip
    return answer({"output": output, "items": items})


async def file(call: Call) -> Response:
    """Return a file, or the part of it that `Range` names."""
    record, path = await call.desk.find(call.part("id")), call.part("path")

    def do() -> tuple[str, SiteFile]:
        with call.desk.open(record.site) as session:
            folder, files = files_of(session, record, call.query.of)
        for each in files:
            if each.path == path:
                return folder, each
        raise NotFound(f"{record.training_id} has no result {path!r}")

    folder, found = await call.desk.at_sites(do)
    tag, headers = etag(found), call.request.headers
    name = quote(path.rpartition("/")[2], errors="replace")
    fields = {"etag": tag, "accept-ranges": "bytes",
              "content-disposition": f"attachment; filename*=UTF-8''{name}"}  # fmt: skip
    known = headers.get("if-none-match", "").replace(" ", "").split(",")
    if {tag, f"W/{tag}", "*"} & {*known}:
        return Response(status_code=304, headers={"etag": tag})
    begin, end, status = 0, found.size_bytes, 200
    range_ = headers.get("range") if headers.get("if-range", tag) == tag else None
    if range_ and (span := span_of(range_, found.size_bytes)):
        begin, end, status = *span, 206
        if begin >= end:
            return refusal(BASE, 416, f"the file has {found.size_bytes} bytes",
                           headers={"content-range": f"bytes */{found.size_bytes}"})  # fmt: skip
        fields["content-range"] = f"bytes {begin}-{end - 1}/{found.size_bytes}"
    fields["content-length"] = str(end - begin)
    content = _content(call, record, f"{folder}/{found.path}", begin, end - begin)
    return StreamingResponse(content, status, fields, BYTES)


def span_of(text: str, size_bytes: int) -> tuple[int, int] | None:
    """Return a range's first byte, and the one after its last; the same if the file has none of it.

    None: the header names several ranges, another unit, or nonsense. As RFC 9110 allows, the whole
    file is the answer then.
    """
    found = _RANGE.fullmatch(text.replace(" ", ""))
    first, last = found.groups() if found else ("", "")
    if first:
        begin = int(first)
        end = min(int(last) + 1, size_bytes) if last else size_bytes
        return None if last and int(last) < begin else (begin, max(begin, end))
    return (max(0, size_bytes - int(last)), size_bytes) if last else None


def _content(call: Call, record: Record, path: str, begin: int, size_bytes: int) -> Iterator[bytes]:
    with call.desk.open(record.site) as session:
        yield from read_part(session, path, begin, size_bytes)


def read_part(session: Session, path: str, begin: int, size_bytes: int) -> Iterator[bytes]:
    """Yield the bytes of a file at the site, a few at a time.

    Raises:
        TransferError: it has fewer, so that nobody takes what has come for the whole file.
    """
    named = shlex.quote(path)
    process = session.transport.start(
        f"LC_ALL=C; export LC_ALL\ntail -c +{begin + 1} <{named} | head -c {size_bytes}"
    )
    try:
        left = size_bytes
        while left > 0 and (chunk := process.stdout.read(min(_CHUNK_BYTES, left))):
            left -= len(chunk)
            yield chunk
        if left:
            raise TransferError(f"{session.transport.name}: {path} has ended {left:,} bytes early")
    finally:
        process.kill()


class _Growing(BytesIO):
    """A file for `zipfile`, which seeks nothing in it, of which only what is new is kept."""

    def tell(self) -> int:
        raise UnsupportedOperation

    def take(self) -> bytes:
        content = self.getvalue()
        self.seek(0)
        self.truncate()
        return content


def zipped(call: Call, record: Record, of: str) -> Iterator[bytes]:
    """Yield a ZIP of all files; neither memory nor the disk here holds more than a chunk of it."""
    growing = _Growing()
    with call.desk.open(record.site) as session:
        folder, files = files_of(session, record, of)
        with zipfile.ZipFile(growing, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for each in files:
                entry = zipfile.ZipInfo(each.path.encode(errors="replace").decode())
                entry.external_attr = 0o644 << 16
                with archive.open(entry, "w", force_zip64=each.size_bytes > 1 << 31) as inner:
                    path = f"{folder}/{each.path}"
                    for chunk in read_part(session, path, 0, each.size_bytes):
                        inner.write(chunk)
                        yield growing.take()
    yield growing.take()


async def archive(call: Call, of: str = "", media: str = ZIP) -> Response:
    """Return all files as a ZIP.

    Args:
        of: As of `folder_at_site`; empty: the query tells it.
    """
    record, part = await call.desk.find(call.part("id")), of or call.query.of
    content = zipped(call, record, part)
    first = await call.desk.at_sites(partial(next, content))  # refuses now, not in the midst
    return StreamingResponse(
        chain([first], content), media_type=media,
        headers={"content-disposition": f'attachment; filename="{record.training_id}-{part}.zip"'},
    )  # fmt: skip


_FILES = object_of(output=str, items=[object_of(path=str, size_bytes=int, etag=str, href=str)])
CONTENT = {"type": "string", "format": "binary"}
_ONE = f"{BASE}/trainings/{{id}}/results"
OPERATIONS = (
    Operation("GET", _ONE, "list_results", "The files that a training has made.", list_, Which,
              answer=_FILES, may_fail=(404, 410)),
    Operation("GET", f"{_ONE}/files/{{path}}", "read_result", "One file; Range and If-None-Match "
              "are understood.", file, Which, answer=CONTENT, media=(BYTES,),
              may_fail=(206, 304, 404, 410, 416)),
    Operation("GET", f"{_ONE}.zip", "read_results", "All files as a ZIP, which is never held "
              "anywhere as a whole.", archive, Which, answer=CONTENT, media=(ZIP,),
              may_fail=(404, 410)),
)  # fmt: skip
