"""Errors as answers: problem details (RFC 9457) with our hint."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from dlctl.errors import (
    DlctlError,
    HasEnded,
    ManifestError,
    Misused,
    PlanError,
    RecordError,
    ResultsError,
    SchedulerUnavailable,
    SiteError,
    SubmitUnknown,
    TransportError,
)
from dlctl.record_batches import KeyTaken

RETRY_S = 5
"""What a client is told to wait before it asks for the same again."""


class NotFound(DlctlError):
    """There is no such thing here."""


class TooLarge(DlctlError):
    """A request has more than the server takes."""


_STATUS: tuple[tuple[type[DlctlError], HTTPStatus], ...] = (
    (NotFound, HTTPStatus.NOT_FOUND),
    (TooLarge, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    (KeyTaken, HTTPStatus.CONFLICT),
    (HasEnded, HTTPStatus.CONFLICT),
    (Misused, HTTPStatus.BAD_REQUEST),
    (ManifestError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (PlanError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (SiteError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (SchedulerUnavailable, HTTPStatus.SERVICE_UNAVAILABLE),
    (SubmitUnknown, HTTPStatus.SERVICE_UNAVAILABLE),
    (TransportError, HTTPStatus.SERVICE_UNAVAILABLE),
    (RecordError, HTTPStatus.CONFLICT),
    (ResultsError, HTTPStatus.CONFLICT),
)
"""The first that fits; another error of ours means that the site has refused."""


def status_of(error: DlctlError) -> HTTPStatus:
    """Return the status of an answer that tells an error."""
    return next((s for kind, s in _STATUS if isinstance(error, kind)), HTTPStatus.CONFLICT)


def problem(
    status: int, detail: str, *, hint: str = "", problems: list[str] | None = None,
    headers: dict[str, str] | None = None, **more: object,
) -> Response:  # fmt: skip
    """Return an answer that says what is wrong."""
    content: dict[str, Any] = {
        "type": "about:blank", "title": HTTPStatus(status).phrase, "status": int(status),
        "detail": detail,
    } | more  # fmt: skip
    if hint:
        content["hint"] = hint
    if problems:
        content["problems"] = problems
    return Response(json_bytes(content), status, headers, "application/problem+json")


def older_problem(
    status: int, why: str, description: str = "", headers: dict[str, str] | None = None
) -> Response:
    """Return an error as these clients read it."""
    told = {"code": int(status), "error": why, "description": description or why}
    return Response(json_bytes(told), status, headers, "application/json")


def of_error(error: DlctlError) -> Response:
    """Return the answer that tells an error of ours."""
    status = status_of(error)
    again = {"retry-after": str(RETRY_S)} if status is HTTPStatus.SERVICE_UNAVAILABLE else None
    problems = list(error.problems) if isinstance(error, ManifestError) else None
    return problem(status, error.message, hint=error.hint, problems=problems, headers=again,
                   exit_code=error.exit_code)  # fmt: skip


def json_bytes(value: object) -> bytes:
    """Return JSON; bytes of names that are no text are replaced."""
    return json.dumps(
        value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=str
    ).encode(errors="replace")
