"""Let only the user in whose name the server runs use it.

On a Unix socket the file's mode keeps others out. On a port each request needs the token, as a
bearer or as the password of HTTP basic. No cookie counts, so that no other page can make a browser
send what counts; and a request that names another host or comes from another page is refused,
because a name of an attacker's may lead to 127.0.0.1 (DNS rebinding).
"""

from __future__ import annotations

import base64
import binascii
import secrets
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders

from dlctl.serve.problems import refusal

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

FREE = ("/docs", "/openapi.json", "/api/v1/health")
"""The paths that need no token: they tell nothing of the user."""
_HOW_TO_ASK = (
    "send `Authorization: Bearer TOKEN`, or TOKEN as a password; the server has said at its start "
    "which file holds it"
)


class Guard:
    """Refuse what does not come from the user.

    Args:
        token: None: none is needed, as on a Unix socket.
        hosts: Names by which the server may be called; none: any, as behind a proxy.
        most_body_bytes: What a request may send.
    """

    def __init__(
        self, app: ASGIApp, *, token: str | None, hosts: frozenset[str], most_body_bytes: int
    ) -> None:
        self._app, self._token, self._hosts = app, token, hosts
        self._most_bytes = most_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request or a WebSocket."""
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["x-content-type-options"] = "nosniff"
                headers.setdefault("cache-control", "no-store")
                headers.setdefault("content-security-policy",
                                   "default-src 'none'; style-src 'unsafe-inline'")  # fmt: skip
            await send(message)

        refused = self._refusal(scope)
        if refused is None:
            return await self._app(scope, self._bounded(receive), send_safely)
        status, why, headers = refused
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close", "code": 1008, "reason": why})
        hint = _HOW_TO_ASK if status is HTTPStatus.UNAUTHORIZED else ""
        response = refusal(scope["path"], status, why, hint=hint, headers=headers)
        return await response(scope, receive, send_safely)

    def _refusal(self, scope: Scope) -> tuple[HTTPStatus, str, dict[str, str] | None] | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._hosts and host not in self._hosts:
            return HTTPStatus.MISDIRECTED_REQUEST, "this server does not answer as that host", None
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self._most_bytes:
            why = f"a request may have {self._most_bytes:,} bytes"
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, why, {"connection": "close"}
        if "content-length" in headers and "transfer-encoding" in headers:
            why = "a body has a Content-Length or a Transfer-Encoding, not both"
            return HTTPStatus.BAD_REQUEST, why, {"connection": "close"}
        if scope["path"] in FREE and scope.get("method") in ("GET", "HEAD"):
            return None
        origin = headers.get("origin", "").partition("://")[2]
        if origin not in ("", host) and not self._is_own_socket(scope, origin):
            return HTTPStatus.FORBIDDEN, "another page sent this request", None
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return HTTPStatus.FORBIDDEN, "another site sent this request", None
        if self._token is not None and not _is(self._token, headers.get("authorization", "")):
            asks = {"www-authenticate": 'Bearer, Basic realm="dlctl"'}
            return HTTPStatus.UNAUTHORIZED, "the token is missing, or is another one", asks
        return None

    def _is_own_socket(self, scope: Scope, origin: str) -> bool:
        """Return whether this is a WebSocket of the older client, which always names localhost.

        It sends the token with it, which no page can.
        """
        has_token = bool(Headers(scope=scope).get("authorization"))
        return scope["type"] == "websocket" and origin in ("localhost", "localhost/") and has_token

    def _bounded(self, receive: Receive) -> Receive:
        """Return what ends a request that sends more than it may, whatever it has announced."""
        left = self._most_bytes

        async def bounded() -> Message:
            nonlocal left
            message = await receive()
            if message["type"] == "http.request":
                left -= len(message.get("body", b""))
                if left < 0:
                    return {"type": "http.disconnect"}
            return message

        return bounded


def _is(token: str, authorization: str) -> bool:
    """Return whether a header has the token."""
    kind, _, value = authorization.partition(" ")
    value = value.strip()
    if kind.lower() == "basic":
        try:
            value = base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, ValueError):
            return False
    elif kind.lower() != "bearer":
        return False
    return secrets.compare_digest(value.encode(), token.encode())
