"""Connections of a search: always with mutual TLS, never through a proxy, limited in size."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import grpc
import grpc.aio

from dlctl.contract import search as files
from search.errors import SearchError
from search.protocol import messages as m

T = TypeVar("T")
SERVER_NAME = "search.dlctl"
"""The name in every server's certificate: hosts have changing names, and roles count, not hosts."""
CA = "ca.pem"
PACKAGE = m.DESCRIPTOR.package
MESSAGE_BYTES = 64 << 20
"""No message is longer: a task's value may have 50 MB, or as many results as fit."""
MOST_CONNECTIONS = 8192
"""A server takes so many, strangers' included, if it may open so many files and a third more."""
HANDSHAKE_S = 10.0
"""How long a connection may take until it is known to be of this search."""

_LIMITS = [
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_metadata_size", 16 << 10),
]
_CLIENT = [
    *_LIMITS,
    ("grpc.ssl_target_name_override", SERVER_NAME),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
]
_SERVER = [
    *_LIMITS,
    ("grpc.so_reuseport", 0),  # otherwise two servers could share one port
    ("grpc.max_concurrent_streams", 256),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
]


@dataclass(frozen=True)
class Credentials:
    """The certificate and key of a process, and the authority that it trusts."""

    role: str
    """`broker`, `nameserver`, `model`, `worker` or `client`: the name in its certificate."""
    authority: bytes
    certificate: bytes
    key: bytes

    @classmethod
    def load(cls, job_dir: Path, role: str) -> Credentials:
        """Read a role's credentials from the job directory.

        Raises:
            SearchError: They are missing, or belong to somebody else.
        """
        folder = job_dir / files.KEYS
        try:
            authority, certificate, key = (
                (folder / name).read_bytes() for name in (CA, f"{role}.pem", f"{role}.key")
            )
        except OSError as error:
            raise SearchError(
                f"the credentials of the role {role!r} can't be read: {error}",
                hint="start the processes of a search as the user who submitted it",
            ) from error
        return cls(role, authority, certificate, key)


class _OtherVersions(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """Refuses calls of another version of the protocol, in a sentence."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """Return what answers a call that no other handler knows."""
        why = (
            f"{handler_call_details.method} is not known here, where {PACKAGE} is spoken: use the "
            "version of dlctl that is in the job directory's runtime"
        )

        async def refuse(request: bytes, context: grpc.aio.ServicerContext) -> None:
            del request
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, why)

        return grpc.unary_unary_rpc_method_handler(refuse)


def open_channel(address: str, credentials: Credentials) -> grpc.aio.Channel:
    """Return a channel to a server at `host:port`. It connects at the first call."""
    tls = grpc.ssl_channel_credentials(
        credentials.authority, credentials.key, credentials.certificate
    )
    return grpc.aio.secure_channel(address, tls, options=_CLIENT)


def open_server(
    host: str, credentials: Credentials, handlers: list[grpc.GenericRpcHandler]
) -> tuple[grpc.aio.Server, str]:
    """Return a server that is not started yet, and its `host:port`: the kernel chose the port.

    Args:
        credentials: Its own; callers must have credentials of the same authority.

    Raises:
        SearchError: Nothing can listen at this address.
    """
    limits = [
        ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_S * 1000)),
        ("grpc.max_allowed_incoming_connections", _most_connections()),
    ]
    server = grpc.aio.server(options=[*_SERVER, *limits])
    server.add_generic_rpc_handlers([*handlers, _OtherVersions()])
    tls = grpc.ssl_server_credentials(
        [(credentials.key, credentials.certificate)],
        root_certificates=credentials.authority,
        require_client_auth=True,
    )
    shown = f"[{host}]" if ":" in host else host
    try:
        port = server.add_secure_port(f"{shown}:0", tls)
    except RuntimeError as error:
        raise SearchError(
            f"the {credentials.role} can't listen at {host}: {error}",
            hint="correct `network` in the site's file, or leave it out",
        ) from error
    return server, f"{shown}:{port}"


def first_fitting(
    items: Iterable[T], size_of: Callable[[T], int], most: int, most_bytes: int
) -> list[T]:
    """Return the first items that fit into one message: at least one if there is one."""
    found: list[T] = []
    size = 0
    for each in items:
        size += size_of(each)
        if found and (len(found) >= most or size > most_bytes):
            break
        found.append(each)
    return found


def _most_connections() -> int:
    """Return how many connections may be open: the server's own files need room beside them."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return (
        MOST_CONNECTIONS if hard == resource.RLIM_INFINITY else min(MOST_CONNECTIONS, hard * 3 // 4)
    )
