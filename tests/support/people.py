"""Those who get notices: a real HTTP server and a real SMTP server on this machine."""

from __future__ import annotations

import contextlib
import datetime
import json
import ssl
import threading
from collections.abc import Iterator
from email import message_from_bytes
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller


class Hook:
    """A webhook; `answers` are the HTTP codes of the next requests, then 200."""

    def __init__(self, address: str = "127.0.0.1") -> None:
        self.got: list[dict[str, Any]] = []
        self.sent: list[tuple[dict[str, str], bytes]] = []
        """The headers, with names in lower case, and the body of each request."""
        self.headers = {"Content-Length": "0"}
        self.answers: list[int] = []
        self.request_count = 0
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:  # noqa: N802
                hook.request_count += 1
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.sent.append(({k.lower(): v for k, v in self.headers.items()}, body))
                code = hook.answers.pop(0) if hook.answers else 200
                if code == 200:
                    hook.got.append(json.loads(body))
                self.send_response(code)
                for name, value in hook.headers.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer((address, 0), Handler)
        self.port = self.server.server_address[1]
        self.url = f"http://{address}:{self.port}/secret-token"

    def encrypt(self, certificate: Path, key: Path) -> None:
        """Answer by TLS, as `localhost`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.server.socket = context.wrap_socket(
            self.server.socket, server_side=True, do_handshake_on_connect=False
        )
        self.url = f"https://localhost:{self.port}/secret-token"


@contextlib.contextmanager
def webhook(address: str = "127.0.0.1") -> Iterator[Hook]:
    hook = Hook(address)
    thread = threading.Thread(target=hook.server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield hook
    finally:
        hook.server.shutdown()
        hook.server.server_close()
        thread.join()


class _Keeps:
    def __init__(self) -> None:
        self.mails: list[Message] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        self.mails.append(message_from_bytes(envelope.content))
        return "250 OK"


def certificate(folder: Path) -> tuple[Path, Path]:
    """Return a new certificate of `localhost`, signed by itself, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name)
        .public_key(key.public_key()).serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    files = folder / "certificate.pem", folder / "key.pem"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ))  # fmt: skip
    return files


@contextlib.contextmanager
def mail_server(**settings: Any) -> Iterator[tuple[int, list[Message]]]:
    """Yield the port and the mails that have come.

    Args:
        settings: of `aiosmtpd.smtp.SMTP`.
    """
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    keeps = _Keeps()
    controller = Controller(keeps, hostname="127.0.0.1", port=port, **settings)
    controller.start()
    try:
        yield port, keeps.mails
    finally:
        controller.stop()
