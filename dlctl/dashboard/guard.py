"""Let only the page that this dlctl opened use the server.

Any page of the web and any user of this machine can reach a port of 127.0.0.1. So all that is not
the bare page needs a random token. It stands behind the `#` of the URL, which browsers send to
nobody, and the page sends it as a header: other sites can't (they would have to ask first, and no
answer allows it). Cookies would go to every port of 127.0.0.1. A request that names another host is
refused, because a name of an attacker's may lead to 127.0.0.1 (DNS rebinding).
"""

from __future__ import annotations

import secrets
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN_HEADER = "x-dlctl-token"  # noqa: S105
TOKEN_PROTOCOL = "token."  # noqa: S105
"""A WebSocket can't send headers: the token is one of the protocols that it offers."""
WEBSOCKET_PROTOCOL = "dlctl"
_FREE_METHODS = ("GET", "HEAD")


def make_token() -> str:
    """Return a token that nobody can guess."""
    return secrets.token_urlsafe(32)


def content_policy(host: str) -> str:
    """Return the Content-Security-Policy: scripts, styles and data from this server only."""
    return "; ".join((
        "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data: blob:",
        f"connect-src 'self' ws://{host}", "base-uri 'none'", "form-action 'none'",
        "frame-ancestors 'none'", "require-trusted-types-for 'script'", "trusted-types 'none'",
    ))  # fmt: skip


class Guard:
    """Refuse what does not come from the page; add the headers that keep the page safe."""

    def __init__(self, app: ASGIApp, *, token: str, port: int) -> None:
        self._app, self._token = app, token
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request or a WebSocket."""
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)
        host = Headers(scope=scope).get("host", "")

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                _add_headers(MutableHeaders(scope=message), host)
            await send(message)

        if (refusal := self._refusal(scope)) is None:
            return await self._app(scope, receive, send_safely)
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close", "code": 1008, "reason": refusal[1]})
        status, why = refusal
        return await JSONResponse({"error": why}, status)(scope, receive, send_safely)

    def _refusal(self, scope: Scope) -> tuple[HTTPStatus, str] | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if host not in self._hosts:
            return HTTPStatus.MISDIRECTED_REQUEST, "this server answers as 127.0.0.1 only"
        free = scope["type"] == "http" and scope["method"] in _FREE_METHODS
        if free and not scope["path"].startswith("/api/"):
            return None
        if headers.get("origin", f"http://{host}") != f"http://{host}":
            return HTTPStatus.FORBIDDEN, "another page sent this request"
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return HTTPStatus.FORBIDDEN, "another site sent this request"
        if not secrets.compare_digest(_token_of(headers).encode(), self._token.encode()):
            return HTTPStatus.UNAUTHORIZED, "the token is missing or from another run of dlctl"
        return None


def _token_of(headers: Headers) -> str:
    for protocol in headers.get("sec-websocket-protocol", "").split(","):
        if protocol.strip().startswith(TOKEN_PROTOCOL):
            return protocol.strip().removeprefix(TOKEN_PROTOCOL)
    return headers.get(TOKEN_HEADER, "")


def _add_headers(headers: MutableHeaders, host: str) -> None:
    headers["content-security-policy"] = content_policy(host)
    headers["x-content-type-options"] = "nosniff"
    headers["referrer-policy"] = "no-referrer"
    headers["cross-origin-opener-policy"] = "same-origin"
    headers["cross-origin-resource-policy"] = "same-origin"
    headers["cache-control"] = "no-store"
