"""Plain HTTP with a kept connection for each thread; what fails in the network is `Unavailable`."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import mktime_tz, parsedate_tz
from typing import IO, Any
from urllib.parse import urlsplit

from learner.storage.objects.base import TIMEOUT_S, Refusal, Refused, Sink, Unavailable, title_of

_BUSY = (408, 429)
_BLOCK_BYTES = 1 << 20
_PIECE_BYTES = 1 << 16
"""How much of an object has to arrive until it is counted."""
IDLE_S = 1.0
"""A connection that was idle for longer is not used again."""


@dataclass(frozen=True)
class Answer:
    """A server's answer with a status below 500."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


class HttpClient:
    """Requests to any server, over a connection of this thread that is kept for a moment.

    A server closes one that is idle. `Patient` repeats what fails, but the end of a large upload
    would fail each time: its thread waits until the parts are sent and the checksums known.
    """

    def __init__(self) -> None:
        self._mine = threading.local()

    def request(
        self, method: str, url: str, headers: Mapping[str, str] | None = None,
        body: bytes | IO[bytes] = b"", start: int = 0, into: Sink | None = None,
    ) -> Answer:  # fmt: skip
        """Send a request and return the answer, whole.

        Args:
            body: Bytes, or a file that is sent from its position on (give Content-Length).
            start: Where a range begins that is asked for.
            into: Takes the range, in place of the answer's body, even if the server sends all.

        Raises:
            Unavailable: the network failed, or the server (5xx, 429, 408).
            Refused: the server's certificate is not trusted.
        """
        connection = self._connection(url)
        try:
            answer = self._once(connection, method, url, headers or {}, body, start, into)
            self._mine.used_at = time.monotonic()
            return answer
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            if isinstance(error, ssl.SSLCertVerificationError):
                early = "not yet valid" in error.verify_message
                why = Refusal.CLOCK if early else Refusal.CERTIFICATE
                raise Refused(why, error.verify_message) from error
            raise Unavailable(_reason(error)) from error

    def _connection(self, url: str) -> http.client.HTTPConnection:
        """Return this thread's connection to a server."""
        parts, now = urlsplit(url), time.monotonic()
        kept: dict[str, http.client.HTTPConnection] = self._mine.__dict__.setdefault("kept", {})
        if now - getattr(self._mine, "used_at", now) > IDLE_S:
            for each in kept.values():
                each.close()  # the next request opens it again
        name = f"{parts.scheme}://{parts.netloc}"
        if name not in kept:
            secure = parts.scheme == "https"
            cls = http.client.HTTPSConnection if secure else http.client.HTTPConnection
            kept[name] = cls(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
        return kept[name]

    def _once(
        self, connection: http.client.HTTPConnection, method: str, url: str,
        headers: Mapping[str, str], body: bytes | IO[bytes], start: int, into: Sink | None,
    ) -> Answer:  # fmt: skip
        parts = urlsplit(url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request(method, target, body or None, dict(headers))
        answer = connection.getresponse()
        content = b""
        if into is not None and answer.status in (200, 206):
            _fill(answer, start if answer.status == 200 else 0, into)
            if not answer.isclosed():
                connection.close()
        else:
            content = answer.read()
        found = {name.lower(): value for name, value in answer.getheaders()}
        if answer.status >= 500 or answer.status in _BUSY:
            what = f"it answers {answer.status} {answer.reason}"
            raise Unavailable(what, _seconds(found.get("retry-after")))
        return Answer(answer.status, found, content)


def from_json(answer: Answer) -> Any:
    """Return what a server says in JSON; nothing is an empty list.

    Raises:
        Refused: it speaks something else.
    """
    try:
        return json.loads(answer.body or b"[]")
    except ValueError as error:
        raise no_service(answer, "its answer is no JSON") from error


def no_service(answer: Answer, why: str) -> Refused:
    """Return what an answer means that no store gives: perhaps it is a web page."""
    if is_page(answer):
        return Refused(Refusal.WEB_PAGE, title_of(answer.body))
    return Refused(Refusal.NO_SUCH_SERVICE, why)


def is_page(answer: Answer) -> bool:
    """Return whether a server says that an answer is a web page."""
    return "html" in answer.headers.get("content-type", "").lower()


def _fill(answer: http.client.HTTPResponse, skipped_bytes: int, into: Sink) -> None:
    """Fill a sink from a body, without the body's first bytes."""
    while skipped_bytes > 0:
        skipped = len(answer.read(min(skipped_bytes, _BLOCK_BYTES)))
        if skipped == 0:
            raise http.client.IncompleteRead(b"")
        skipped_bytes -= skipped
    while rest := into.rest:
        filled = answer.readinto(rest[:_PIECE_BYTES])
        if filled == 0:
            raise http.client.IncompleteRead(b"")
        into.filled(filled)


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it does not answer in time"
    if isinstance(error, http.client.IncompleteRead):
        return "the connection was cut while data came"
    with contextlib.suppress(AttributeError):
        if error.strerror:  # type: ignore[attr-defined]
            return f"the connection failed: {error.strerror}"  # type: ignore[attr-defined]
    return f"the connection failed: {error or type(error).__name__}"


def _seconds(text: str | None) -> float | None:
    """Return how long `Retry-After` asks to wait: seconds, or until a date."""
    if text is None:
        return None
    if text.strip().isdecimal():
        return float(text)
    date = parsedate_tz(text)
    return None if date is None else max(0.0, mktime_tz(date) - time.time())
