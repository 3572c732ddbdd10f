"""Keystone's authentication (v3) before a real Swift: its tokens are Swift's own."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextlib.contextmanager
def keystone(swift: Any, project: str, domain: str, region: str) -> Iterator[str]:
    """Yield the address of a keystone that knows Swift's user, in one project and domain."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["auth"]
            user = asked["identity"]["password"]["user"]
            right = (user["name"], user["password"]) == (swift.user, swift.password)
            right = right and user["domain"] == {"name": domain}
            right = right and asked["scope"] == {"project": {"id": project}}
            self.send_response(201 if self.path == "/v3/auth/tokens" and right else 401)
            places = [
                {"interface": "public", "region": other, "url": f"{swift.s3_url}/v1/{account}"}
                for other, account in (("elsewhere", "AUTH_none"), (region, "AUTH_test"))
            ]
            catalog = [{"type": "identity", "endpoints": []},
                       {"type": "object-store", "endpoints": places}]  # fmt: skip
            body = json.dumps({"token": {"catalog": catalog}}).encode() if right else b"{}"
            if right:
                self.send_header("X-Subject-Token", swift.token())
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
