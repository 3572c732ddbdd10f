"""Errors as answers: problem details (RFC 9457) with our hint; for `/v1` what its clients read."""

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
    NotWritten,
    PlanError,
    RecordError,
    ResultsError,
    SchedulerUnavailable,
    SiteError,
    SubmitUnknown,
    TransportError,
)
from dlctl.record.batches import KeyTaken

OLDER = "/v1/"
RETRY_S = 5
"""What a client is told to wait before it asks for the same again."""


class Malformed(DlctlError):
    """A request is not as its description says."""


class NotFound(DlctlError):
    """There is no such thing here."""


class Gone(DlctlError):
    """There was such a thing, but its files are no more."""


class TooLarge(DlctlError):
    """A request has more than the server takes."""


_STATUS: tuple[tuple[type[DlctlError], HTTPStatus], ...] = (
    (NotFound, HTTPStatus.NOT_FOUND),
    (Gone, HTTPStatus.GONE),
    (TooLarge, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    (KeyTaken, HTTPStatus.CONFLICT),
    (HasEnded, HTTPStatus.CONFLICT),
    (NotWritten, HTTPStatus.SERVICE_UNAVAILABLE),
    (Malformed, HTTPStatus.BAD_REQUEST),
    (Misused, HTTPStatus.UNPROCESSABLE_ENTITY),
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


def refusal(
    path: str, status: int, detail: str, *, hint: str = "", headers: dict[str, str] | None = None,
    **more: object,
) -> Response:  # fmt: skip
    """Return an answer that says what is wrong, as the interface that was asked says it.

    Args:
        path: What was asked for.
        more: Further members of the problem's details; empty ones are left out.
    """
    if path.startswith(OLDER):
        older = {"code": int(status), "error": detail, "description": hint or detail}
        return Response(json_bytes(older), status, headers, "application/json")
    content: dict[str, Any] = {
        "type": "about:blank", "title": HTTPStatus(status).phrase, "status": int(status),
        "detail": detail, **{name: value for name, value in more.items() if value},
    }  # fmt: skip
    if hint:
        content["hint"] = hint
    return Response(json_bytes(content), status, headers, "application/problem+json")


def of_error(path: str, error: DlctlError) -> Response:
    """Return the answer that tells an error of ours."""
    status = status_of(error)
    if status is HTTPStatus.UNPROCESSABLE_ENTITY and path.startswith(OLDER):
        status = HTTPStatus.BAD_REQUEST  # the only one that its clients know
    again = {"retry-after": str(RETRY_S)} if status is HTTPStatus.SERVICE_UNAVAILABLE else None
    problems = list(error.problems) if isinstance(error, ManifestError) else None
    return refusal(path, status, error.message, hint=error.hint, headers=again, problems=problems,
                   exit_code=error.exit_code)  # fmt: skip


def json_bytes(value: object) -> bytes:
    """Return JSON: null for NaN and infinity; bytes of names that are no text are replaced."""
    how: dict[str, Any] = {"ensure_ascii": False, "separators": (",", ":"), "default": str}
    try:
        text = json.dumps(value, allow_nan=False, **how)
    except ValueError:
        finite = json.loads(json.dumps(value, **how), parse_constant=lambda _: None)
        text = json.dumps(finite, **how)
    return text.encode(errors="replace")
