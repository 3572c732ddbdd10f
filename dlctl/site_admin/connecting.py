"""Open and end the connection of a site that stays between commands."""

from __future__ import annotations

from dataclasses import dataclass

from dlctl.errors import SiteError
from dlctl.sites.files import load_site
from dlctl.transport.openssh import OpensshTransport


@dataclass(frozen=True)
class Connection:
    """A site's connection."""

    site: str
    login_node: str
    was_open: bool
    persist_s: int
    """How long it stays after the last command."""


def connect(name: str) -> Connection:
    """Open a site's connection, unless it is open; ssh asks on the terminal what the site asks.

    Raises:
        SiteError: the site's connections do not stay.
        TransportError
    """
    transport, persist_s = _lasting(name)
    was_open = transport.is_open()
    if not was_open:
        transport.open(ask=True)
    return Connection(name, transport.name, was_open, persist_s)


def disconnect(name: str) -> Connection:
    """End a site's connection, for all commands that use it.

    Raises:
        SiteError: the site's connections do not stay.
    """
    transport, persist_s = _lasting(name)
    return Connection(name, transport.name, transport.disconnect(), persist_s)


def _lasting(name: str) -> tuple[OpensshTransport, int]:
    settings = load_site(name).transport
    if settings.kind == "local":
        raise SiteError(f"{name} is this machine: there is no connection to it")
    if settings.kind != "openssh":
        raise SiteError(
            f"{name}: no connection stays open there: its transport is {settings.kind!r}",
            hint=f"for one log-in a day set `kind: openssh` in its file: dlctl sites show {name}",
        )
    return OpensshTransport(settings, f"dlctl sites connect {name}"), settings.persist_s
