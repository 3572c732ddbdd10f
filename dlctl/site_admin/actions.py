"""Add and set up sites, open and end connections that stay, and know bad nodes."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.contract import BadNode
from dlctl.errors import SiteError
from dlctl.files.small_files import read_appended
from dlctl.site_admin import setup
from dlctl.site_admin.discovery import discover
from dlctl.site_admin.draft import make_site, site_text
from dlctl.sites import files
from dlctl.sites.files import TransportSettings, load_site
from dlctl.transport import open_transport, remote_kind
from dlctl.units import format_span

if TYPE_CHECKING:
    from dlctl.transport.base import Prompt, Transport
    from dlctl.transport.openssh import OpensshTransport

_NODE_BYTES = 100_000


@dataclass(frozen=True)
class Added:
    """A site that was inspected, in a few words."""

    site: str
    file: str
    login_node: str
    scheduler: str
    partitions: str
    connection: str
    account: str
    launcher: str
    root: str
    python: str
    not_answered: str


def parse_target(target: str, port: int | None = None) -> TransportSettings:
    """Return how to reach `user@host`, a host or alias, or `local`, this machine.

    Raises:
        SiteError: the text names no host.
    """
    if target == "local":
        return TransportSettings(kind="local")
    user, _, host = target.rpartition("@")
    try:
        return TransportSettings.model_validate(
            {"kind": remote_kind(), "host": host, "user": user or None, "port": port}
        )
    except ValueError as error:
        raise SiteError(
            f"{target!r} names no host", hint="write user@host, a Host of ~/.ssh/config, or local"
        ) from error


def add_site(
    name: str,
    transport: TransportSettings,
    *,
    root: str | None = None,
    python: str | None = None,
    alone: bool = False,
    force: bool = False,
    prompt: Prompt | None = None,
) -> Added:
    """Inspect a site and write its file.

    Args:
        alone: run jobs on that machine itself, even if it has a scheduler.

    Raises:
        SiteError: the file exists already, or the site's answer is unusable.
        TransportError
    """
    files.check_name(name)
    path = files.user_directory() / f"{name}.yml"
    if name in {file.name for file in files.list_sites() if file.shipped} and not force:
        raise SiteError(
            f"{name} is a site that dlctl ships; a file of your own would take its place",
            hint="choose another name, or --force",
        )
    if path.exists() and not force:
        raise SiteError(f"the site {name} already exists: {path}", hint="--force replaces it")
    with _opened(transport, prompt, "") as connection:
        found = discover(connection)
    try:
        site = make_site(name, found, transport, root=root, python=python, alone=alone)
    except ValueError as error:
        raise SiteError(f"{name}: {error}", hint="check --root and --python") from error
    file, used = (
        files.save_site(name, site_text(site, found), force=force),
        site.scheduler.allocates,
    )
    return Added(
        site=name, file=str(file), login_node=f"{found.user} on {found.host}",
        scheduler=found.offer.title if used else "not used", partitions=", ".join(site.partitions),
        connection=f"stays open until {format_span(transport.persist_s)} after the last command"
        if transport.kind == "openssh" else "",
        account=site.scheduler.account or "", root=site.root,
        launcher=f"{site.launcher.kind} {site.launcher.mpi or ''}".strip(),
        python=site.environment.python or "not set up yet",
        not_answered="\n".join(found.offer.problems) if used else "",
    )  # fmt: skip


def setup_site(
    name: str, prompt: Prompt | None = None, note: Callable[[str], None] = lambda _: None
) -> setup.SetupAnswer:
    """Install the Python of a site's nodes and write it into the site's file.

    Args:
        note: called with what to know before.

    Raises:
        SiteError: one sentence that says why the setup failed.
        TransportError
    """
    site = load_site(name)
    note(f"this may take a few minutes\n{setup.setup_advice(site)}".strip())
    with _opened(site.transport, prompt, name) as connection:
        end = connection.run(setup.setup_script(site), timeout_s=setup.SETUP_TIMEOUT_S)
    answer = setup.parse_setup(name, end.exit_code, end.text, end.error_text)
    if answer.python == setup.python_of(site):
        return answer
    shipped = files.find_site(name).shipped
    path = files.set_python(name, answer.python)
    if not shipped:
        return answer
    text = f"wrote {path}, which takes the place of the site that dlctl ships"
    return replace(answer, notes=[*answer.notes, f"{text}; `dlctl sites remove {name}` undoes it"])


@contextmanager
def _opened(settings: TransportSettings, prompt: Prompt | None, name: str) -> Iterator[Transport]:
    transport = open_transport(settings, prompt, name)
    try:
        yield transport
    finally:
        transport.close()


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
    from dlctl.transport.openssh import OpensshTransport

    settings = load_site(name).transport
    if settings.kind == "local":
        raise SiteError(f"{name} is this machine: there is no connection to it")
    if settings.kind != "openssh":
        raise SiteError(
            f"{name}: no connection stays open there: its transport is {settings.kind!r}",
            hint=f"for one log-in a day set `kind: openssh` in its file: dlctl sites show {name}",
        )
    return OpensshTransport(settings, f"dlctl sites connect {name}"), settings.persist_s


def bad_nodes(name: str, prompt: Prompt | None = None, forget: str = "") -> list[BadNode]:
    """Return the nodes that a site avoids, as they failed a training lately, the newest first.

    Args:
        forget: the node on which trainings may run again; the only one that is returned.

    Raises:
        SiteError: the site does not avoid that node.
        TransportError
    """
    site = load_site(name)
    folder = f"{site.root}/{contract.NODES}"
    with _opened(site.transport, prompt, name) as connection:
        texts = read_appended(connection, folder, ["*.json"], {}, _NODE_BYTES)
        found = [contract.understood(BadNode, text) for text in texts.values()]
        known = [node for node in found if node is not None and node.expires_at > time.time()]
        if forget and forget not in [node.host for node in known]:
            avoided = ", ".join(node.host for node in known) or "none"
            raise SiteError(
                f"{name} does not avoid the node {forget!r}", hint=f"it avoids: {avoided}"
            )
        if forget:
            end = connection.run(f"rm -f -- {shlex.quote(f'{folder}/{forget}.json')}")
            if end.exit_code:
                raise SiteError(f"{name}: what is known of {forget} can't be removed: "
                                f"{end.last_error_line}")  # fmt: skip
    return sorted((n for n in known if forget in ("", n.host)), key=lambda n: -n.seen_at)
