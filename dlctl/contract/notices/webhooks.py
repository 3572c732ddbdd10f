"""Send a notice to a webhook: signed, in bounded time, and never into somebody's own network.

The URL may come from a stranger, and the sender may stand behind a firewall. So every address that
the URL's name resolves to is checked, the connection goes to one that was checked, no redirect is
followed and no proxy is asked. The headers are those of https://www.standardwebhooks.com.
"""

from __future__ import annotations

import base64
import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from dlctl.contract.ground.safe_text import without_prefix
from dlctl.contract.notices.notice import NOTICE_TIMEOUT_S, Notice, Notify, NotSent, send_mail

if TYPE_CHECKING:
    import socket


import re
from dataclasses import dataclass, field

from dlctl.contract.files import understood

_PORTS = {"https": 443, "http": 80}
_GONE, _BUSY = 410, (429, 503)
_LONGEST_WAIT_S = 24 * 3600.0
"""A receiver that says more has made a mistake."""
_SECRET_BYTES = range(24, 65)


def check_webhook(url: str, secret: str, hosts: Sequence[str]) -> None:
    """Refuse what nothing will be sent to, as far as it shows without asking a name server.

    Args:
        hosts: The site's `webhook_hosts`: names, addresses and networks that may be private, and
            do without TLS.

    Raises:
        NotSent: names neither the URL's path, which often is a credential, nor the secret.
    """
    parts = _parts(url)
    _key(secret)
    from dlctl.contract.ground.addresses import parse_address

    if parse_address(_host(parts)):
        _check_addresses(parts, [_host(parts)], hosts)
    elif parts.scheme == "http" and not hosts:
        raise _without_tls(_host(parts))


def send_webhook(
    to: Endpoint, hosts: Sequence[str], notice: Notice, timeout_s: float = NOTICE_TIMEOUT_S
) -> None:
    """Send a notice; a status of 2xx says that it has come.

    Args:
        hosts: As in `check_webhook`.

    Raises:
        NotSent: names neither the URL's path nor the secret.
    """
    content = notice.to_json().encode()
    headers = signed_headers(to.secret, notice.id, content)
    status, retry_after = _Request(to.url, hosts, content, headers, timeout_s).answer()
    if status == _GONE:
        raise NotSent("the webhook answered with 410",
                      hint="the receiver wants no more: take it out", wait_s=math.inf)  # fmt: skip
    if not 200 <= status < 300:
        wait_s = _wait_s(retry_after) if status in _BUSY else 0.0
        raise NotSent(f"the webhook answered with {status}", wait_s=wait_s)


def send_notice(
    way: str, notify: Notify | None, endpoints: Iterable[Endpoint], notice: Notice,
    hosts: Sequence[str], resolve: Callable[[str], str],
) -> None:  # fmt: skip
    """Send a notice by mail or to a webhook: a way of `ways_of`, but no command.

    Args:
        hosts: As in `check_webhook`.
        resolve: Returns what is behind a reference.

    Raises:
        NotSent, and what `resolve` raises
    """

    def value(reference: str | None) -> str:
        return "" if reference is None else resolve(reference)

    if way == "email" and notify is not None and notify.smtp is not None:
        send_mail(notify.smtp, value(notify.smtp.password), str(notify.email), notice)
        return
    to = next((e for e in endpoints if (e.event, e.way) == (notice.event, way)), None)
    if to is None:
        assert notify is not None
        to = Endpoint("", notice.event, value(notify.webhook), value(notify.webhook_secret))
    send_webhook(to, hosts, notice)


def _wait_s(retry_after: str) -> float:
    """Return how long a busy receiver wants to be left alone: it says seconds, or when."""
    from email.utils import parsedate_to_datetime

    wait_s = 0.0
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        if retry_after.isdecimal():
            wait_s = float(retry_after)
        else:
            wait_s = parsedate_to_datetime(retry_after).timestamp() - time.time()
    return min(max(0.0, wait_s), _LONGEST_WAIT_S)


def signed_headers(secret: str, message_id: str, content: bytes) -> dict[str, str]:
    """Return the headers of a message that is sent now; without a secret it has no signature."""
    import hmac

    now = str(int(time.time()))
    headers = {"webhook-id": message_id, "webhook-timestamp": now}
    if key := _key(secret):
        signed = f"{message_id}.{now}.".encode() + content
        code = base64.b64encode(hmac.digest(key, signed, "sha256"))
        headers["webhook-signature"] = f"v1,{code.decode()}"
    return headers


def _key(secret: str) -> bytes:
    if not secret:
        return b""
    key = b""
    with contextlib.suppress(ValueError):
        key = base64.b64decode(without_prefix(secret, "whsec_"), validate=True)
    if len(key) not in _SECRET_BYTES:
        raise NotSent(
            "the secret is not whsec_ and 24 to 64 bytes in base64",
            hint="echo whsec_$(openssl rand -base64 32) makes one",
        )
    return key


def _parts(url: str) -> SplitResult:
    with contextlib.suppress(ValueError):
        parts = urlsplit(url)
        if parts.scheme in _PORTS and parts.hostname and parts.port != 0:
            if parts.username is None:
                return parts
            raise NotSent("the webhook's URL names a user, which is not sent",
                          hint="leave it out, and sign with webhook_secret")  # fmt: skip
    raise NotSent("the webhook is no http or https URL",
                  hint="write https://… or a reference to it")  # fmt: skip


def _host(parts: SplitResult) -> str:
    return str(parts.hostname).rstrip(".")


def _check_addresses(parts: SplitResult, addresses: Iterable[str], hosts: Sequence[str]) -> None:
    """Refuse a host if one of its addresses is not public, or it is to be reached without TLS."""
    from dlctl.contract.ground.addresses import is_listed, is_public, parse_address

    host = _host(parts)
    if host in hosts:
        return
    for address in map(parse_address, addresses):
        if address and is_listed(address, hosts):
            continue
        if not address or not is_public(address):
            where = host if host == str(address) else f"{host}, at {address},"
            raise NotSent(
                f"the webhook's host {where} is not public",
                hint=f"if it is yours, add {host} to webhook_hosts in the site's file",
            )
        if parts.scheme == "http":
            raise _without_tls(host)


def _without_tls(host: str) -> NotSent:
    return NotSent(
        f"the webhook at {host} is asked without TLS",
        hint=f"write https, or add {host} to webhook_hosts in the site's file",
    )


class _Request:
    """A request that ends in time, whatever name servers, the network and the server do.

    A thread makes it: neither a name server's silence nor an answer of a byte a second is ended by
    a socket's own time limit. When time is up its socket is shut down, which ends the thread.
    """

    def __init__(
        self, url: str, hosts: Sequence[str], content: bytes, headers: dict[str, str],
        timeout_s: float,
    ) -> None:  # fmt: skip
        self._url, self._hosts = url, hosts
        self._content, self._headers = content, headers
        self._timeout_s, self._until = timeout_s, time.monotonic() + timeout_s
        self._socket: socket.socket | None = None
        self._answer, self._problem = (0, ""), NotSent("the webhook's answer is unknown")

    def answer(self) -> tuple[int, str]:
        """Return the status of the answer, and its `Retry-After`.

        Raises:
            NotSent
        """
        thread = threading.Thread(target=self._run, name="dlctl-webhook", daemon=True)
        thread.start()
        thread.join(self._timeout_s)
        if thread.is_alive():
            self._shut_down()
            raise self._late()
        if not self._answer[0]:
            raise self._problem
        return self._answer

    def _late(self) -> NotSent:
        return NotSent(f"the webhook did not answer within {self._timeout_s:g} s")

    def _shut_down(self) -> None:
        import socket

        with contextlib.suppress(OSError):
            if self._socket is not None:  # not TLS's own method, which is not for two threads
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def _run(self) -> None:
        import http.client
        import ssl

        try:
            self._answer = self._ask(_parts(self._url))
        except NotSent as error:
            self._problem = error
        except ssl.SSLCertVerificationError as error:
            self._problem = NotSent(f"the webhook's certificate: {error.verify_message}")
        except TimeoutError:
            self._problem = self._late()
        except OSError as error:
            why = error.strerror or type(error).__name__
            self._problem = NotSent(f"the webhook can't be reached: {why}")
        except (ValueError, http.client.HTTPException) as error:
            self._problem = NotSent(f"the webhook can't be reached: {type(error).__name__}")

    def _ask(self, parts: SplitResult) -> tuple[int, str]:
        import http.client
        import ssl

        host, port = _host(parts), parts.port or _PORTS[parts.scheme]
        self._socket = self._connect(parts, host, port)
        if parts.scheme == "https":
            self._socket = ssl.create_default_context().wrap_socket(
                self._socket, server_hostname=host, do_handshake_on_connect=False
            )
        with self._socket as connected:
            if isinstance(connected, ssl.SSLSocket):
                connected.do_handshake()
            connection = http.client.HTTPConnection(host, port)  # writes and reads, no more
            connection.sock = connected
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            headers = {"Host": parts.netloc.encode("idna").decode(), "User-Agent": "dlctl",
                       "Content-Type": "application/json", **self._headers}  # fmt: skip
            connection.request("POST", target, self._content, headers)
            response = connection.getresponse()
            return response.status, response.getheader("Retry-After", "").strip()

    def _connect(self, parts: SplitResult, host: str, port: int) -> socket.socket:
        """Connect to one of the host's addresses, all of which have been checked."""
        import socket

        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
        _check_addresses(parts, addresses, self._hosts)
        for left in range(len(addresses), 0, -1):
            left_s = self._until - time.monotonic()
            if left_s <= 0:  # nobody waits for it any more
                raise TimeoutError
            try:
                return socket.create_connection((addresses[-left], port), left_s / left)
            except OSError:
                if left == 1:
                    raise
        raise NotSent("the webhook's host has no address")


@dataclass(frozen=True)
class Endpoint:
    """A webhook; one that was registered after the submission is a line of `endpoints_file`."""

    id: str
    """Up to 64 letters, digits, `_` and `-`."""
    event: str
    """`started`, `failed`, `plateau` or `finished`."""
    url: str = field(default="", repr=False)
    """Empty: the endpoint was removed."""
    secret: str = field(default="", repr=False)
    """Signs what is sent: `whsec_` and 24 to 64 bytes in base64; empty: nothing is signed."""

    @property
    def way(self) -> str:
        """Return its part of the name of the file that claims a notice."""
        return f"webhook-{self.id}"


ENDPOINT_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def endpoints_file(root: str, training_id: str) -> str:
    """Return the JSON lines of a training's endpoints; of those with the same id the last counts.

    Among its secrets: a URL often holds one.
    """
    return f"{root}/secrets/{training_id}/endpoints"


def parse_endpoints(text: str) -> list[Endpoint]:
    """Return the endpoints that a file has; a line that a crash cut short counts as absent."""
    found: dict[tuple[str, str], Endpoint] = {}
    for line in text.splitlines():
        if endpoint := understood(Endpoint, line):
            found[endpoint.event, endpoint.id] = endpoint
    return [endpoint for endpoint in found.values() if endpoint.url]


def ways_of(notify: Notify | None, endpoints: Iterable[Endpoint], event: str) -> list[str]:
    """Return the ways in which dlctl itself tells of an event."""
    ways = notify.ways if notify is not None and event in notify.on else []
    return [*ways, *(each.way for each in endpoints if each.event == event)]
