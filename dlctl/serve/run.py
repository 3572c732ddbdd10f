"""Run the server at a socket or port that only its user can reach, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl.errors import Misused, RecordError
from dlctl.record import state_directory
from dlctl.serve.app import code_digest, make_app
from dlctl.serve.uploads import remove_unused
from dlctl.web.connections import BACKLOG, Server, listen, server_of

if TYPE_CHECKING:
    from dlctl.serve.desk import Desk

_LEAVE_S = 60
"""The time that submissions have to finish."""
_MESSAGE_BYTES = 64 * 1024
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Place:
    """Where to listen.

    Args:
        unix: A socket's file; None: a port.
        port: 0 for any free one.
        address: Another one than loopback needs TLS, or a proxy.
        certificate, key: Files of TLS.
        trusts_proxy: Whether a proxy stands before the server, which does TLS.
    """

    unix: Path | None = None
    port: int = 0
    address: str = "127.0.0.1"
    certificate: Path | None = None
    key: Path | None = None
    trusts_proxy: bool = False

    def __post_init__(self) -> None:
        if os.geteuid() == 0:
            raise Misused("the server does not run as root: it does what its user may do")
        if bool(self.certificate) != bool(self.key):
            raise Misused("--tls-certificate and --tls-key go together")
        is_open = self.address not in _LOOPBACK and not (self.certificate or self.trusts_proxy)
        if self.unix is None and is_open:
            raise Misused(
                f"{self.address} can be reached from other machines: --tls-certificate and "
                "--tls-key, or --trust-proxy if a proxy stands before it"
            )


def default_socket() -> Path:
    """Return `$XDG_RUNTIME_DIR/dlctl/serve.sock`; beside the local record without it."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return (Path(runtime) / "dlctl" if runtime else state_directory()) / "serve.sock"


def token_file() -> Path:
    """Return the file of the token."""
    return state_directory() / "serve.token"


def read_token() -> str:
    """Return the token of this user's servers; make it at the first start.

    Raises:
        RecordError: others may read its file.
    """
    path = token_file()
    with suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
    if path.stat().st_mode & 0o077 or path.stat().st_uid != os.getuid():
        raise RecordError(f"{path}, which holds the token, can be read by others",
                          hint=f"rm {path}; the next start makes a new token")  # fmt: skip
    token = path.read_text().strip()
    if len(token) < 16:
        raise RecordError(f"{path} holds no token", hint=f"rm {path}")
    return token


@contextmanager
def prepared(desk: Desk, place: Place) -> Iterator[tuple[str, Server]]:
    """Yield the address of the server, which `run` starts.

    Raises:
        RecordError: another server is there, or the address can't be used.
    """
    remove_unused(desk.mine.store.all())
    code_digest()
    if place.unix is not None:
        with _at_file(place.unix) as listener:
            app = make_app(desk, token=None, hosts=frozenset())
            yield f"unix:{place.unix}", _server(app, listener, desk, place)
        return
    with closing(listen(place.port, place.address)) as listener:
        port = listener.getsockname()[1]
        scheme = "https" if place.certificate else "http"
        named = f"[{place.address}]" if ":" in place.address else place.address
        known = {f"{host}:{port}" for host in ("127.0.0.1", "localhost", "[::1]", named)}
        is_loopback = place.address in _LOOPBACK and not place.trusts_proxy
        hosts = frozenset(known) if is_loopback else frozenset()
        app = make_app(desk, token=read_token(), hosts=hosts)
        yield f"{scheme}://{named}:{port}", _server(app, listener, desk, place)


def _server(app: object, listener: socket.socket, desk: Desk, place: Place) -> Server:
    tls = {"ssl_certfile": place.certificate, "ssl_keyfile": place.key} if place.certificate else {}
    try:
        return server_of(app, listener, desk.followers.close, leave_s=_LEAVE_S,  # type: ignore[arg-type]
                         most_message_bytes=_MESSAGE_BYTES, **tls)  # fmt: skip
    except OSError as error:  # only files of TLS are read here
        raise RecordError(
            f"{place.certificate} and {place.key} can't be used: {error.strerror or error}",
            hint="name a certificate and its key, both in PEM, that this user can read",
        ) from error


@contextmanager
def _at_file(path: Path) -> Iterator[socket.socket]:
    """Listen on a socket that only this user can open."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise RecordError(f"{path.parent} can't be made: {error.strerror or error}",
                          hint="name another place: --socket FILE") from error  # fmt: skip
    with suppress(OSError), closing(socket.socket(socket.AF_UNIX)) as probe:
        probe.connect(str(path))
        raise RecordError(f"another server answers at {path}",
                          hint="end it, or name another file: --socket FILE")  # fmt: skip
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise RecordError(f"{path} is no socket", hint="name another file: --socket FILE")
        path.unlink()
    before = os.umask(0o177)
    try:
        with closing(socket.socket(socket.AF_UNIX)) as listener:
            try:
                listener.bind(str(path))
            except OSError as error:
                raise RecordError(f"{path} can't be made: {error.strerror or error}",
                                  hint="a shorter path: --socket FILE") from error  # fmt: skip
            finally:
                os.umask(before)
            listener.listen(BACKLOG)
            mine = path.stat().st_ino
            yield listener
            with suppress(OSError):
                if path.stat().st_ino == mine:
                    path.unlink()
    finally:
        os.umask(before)


def serve(desk: Desk, place: Place, tell: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Args:
        tell: Called with the address as soon as the server answers there.
    """
    # Once uvicorn has ended it raises the signal again, which would end the process here and now.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with closing(desk), prepared(desk, place) as (address, server):
        tell(address)
        with suppress(KeyboardInterrupt):
            server.run()
