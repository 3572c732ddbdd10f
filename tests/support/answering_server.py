"""A server with one answer, perhaps behind TLS, and the files of an authority that signs for it."""

import contextlib
import datetime
import ipaddress
import ssl
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


@contextlib.contextmanager
def answering(status, body, certificate=None, **headers):
    """Yield the address of a server.

    Args:
        body: Its one answer, or what returns one for a method and a path; None: there is none.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
            answer = body(self.command, self.path) if callable(body) else body
            self.send_response_only(404 if answer is None else status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(answer or b"")))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer or b"")

        do_HEAD = do_PUT = do_POST = do_GET

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        Thread(target=server.serve_forever, daemon=True).start()
        scheme = "https" if certificate else "http"
        yield f"{scheme}://127.0.0.1:{server.server_port}"
        server.shutdown()


def signed(folder, begins_in_days, ends_in_days):
    """Return the files of an authority, and of a server's certificate and key that it signed."""
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    days = [datetime.timedelta(days=each) for each in (begins_in_days, ends_in_days)]
    now, made = datetime.datetime.now(datetime.timezone.utc), []
    for number, of in enumerate(("authority", "localhost")):
        name = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, n)])
                for n in (of, "authority")]  # fmt: skip
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        extension = (
            x509.SubjectAlternativeName([address]) if number
            else x509.BasicConstraints(ca=True, path_length=None)
        )  # fmt: skip
        begin, end = days if number else (-datetime.timedelta(1), datetime.timedelta(1))
        made.append(
            x509.CertificateBuilder().subject_name(name[0]).issuer_name(name[1])
            .public_key(keys[number].public_key()).serial_number(number + 1)
            .not_valid_before(now + begin).not_valid_after(now + end)
            .add_extension(extension, critical=not number).sign(keys[0], hashes.SHA256())
            .public_bytes(serialization.Encoding.PEM)
        )  # fmt: skip
    key = keys[1].private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "authority.pem").write_bytes(made[0])
    (folder / "server.pem").write_bytes(made[1] + key)
    return folder / "authority.pem", folder / "server.pem"
