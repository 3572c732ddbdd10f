"""Endpoints of a training: webhooks that are registered after its submission.

They lie among its secrets at the site, where the nodes and each dlctl that looks find them.
"""

from __future__ import annotations

import json
import secrets
import shlex
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.contract import Endpoint, Notice, State
from dlctl.errors import DlctlError, Misused, RecordError, TransferError
from dlctl.files.small_files import read_texts
from dlctl.plan.sections import notify_plan
from dlctl.request.credentials import secret_values
from dlctl.sites.files import load_site

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dlctl.lifecycle import Session
    from dlctl.manifest.model import Manifest
    from dlctl.record import Record

AT_MOST = 16
"""Endpoints of a training: each dead one costs a look seconds."""


def endpoints(session: Session, record: Record) -> list[Endpoint]:
    """Return the endpoints that are told of a training's events.

    Raises:
        TransportError
    """
    path = contract.endpoints_file(session.site.root, record.training_id)
    text = (read_texts(session.transport, [path])[path] or b"").decode(errors="replace")
    return contract.parse_endpoints(text)


def register(session: Session, record: Record, wanted: Endpoint) -> Endpoint:
    """Tell a URL of an event from now on; the same id again replaces its URL.

    An event that has been told to this id is not told again.

    Raises:
        Misused: there is no such event, the id can't be used, or nothing would be sent to the URL.
        RecordError: the training has ended.
        TransportError
    """
    if wanted.event not in contract.EVENTS:
        raise Misused(f"{wanted.event!r} is no event; {', '.join(contract.EVENTS)} are")
    if not contract.ENDPOINT_ID.fullmatch(wanted.id):
        raise Misused("an endpoint's id has up to 64 letters, digits, '_' and '-'")
    if record.state.final:
        raise RecordError(f"{record.training_id} is {record.state}: nothing will happen to it")
    try:
        contract.check_webhook(wanted.url, wanted.secret, session.site.webhook_hosts)
    except contract.NotSent as error:
        raise Misused(f"{error.message}; {error.hint}") from None
    others = {(each.event, each.id) for each in endpoints(session, record)}
    if len(others - {(wanted.event, wanted.id)}) >= AT_MOST:
        raise Misused(f"{record.training_id} has {AT_MOST} endpoints, and no more are told")
    _append(session, record, wanted)
    return wanted


def unregister(session: Session, record: Record, known: Endpoint) -> None:
    """Tell an endpoint no more.

    Raises:
        TransportError
    """
    _append(session, record, Endpoint(known.id, known.event))


def try_notices(manifest: Manifest, folder: Path, site: str) -> Iterator[str]:
    """Send a test notice in each way that a manifest names; yield the way once it was taken.

    It goes from this machine: whether the nodes reach the receiver is not known. A command runs at
    the site only.

    Args:
        folder: That of the manifest.
        site: Whose `webhook_hosts` may be private.

    Raises:
        ManifestError, SiteError: a credential is not known here, or there is no such site.
        Misused: the manifest names no such way.
        DlctlError: one was not taken.
    """
    bare, literal = manifest.extract_secrets()
    values, hosts = secret_values(bare, literal, folder), load_site(site).webhook_hosts
    plan = notify_plan(bare.notify, "")
    ways = [way for way in (plan.ways if plan else []) if way != "command"]
    if plan is None or not ways:
        raise Misused("the manifest's `notify` has no webhook, and no email with smtp, to try")
    text = "This is a test: `dlctl validate --notify` has sent it."
    notice = Notice("started", f"test-{secrets.token_hex(4)}", manifest.name, site, 1,
                    str(State.TRAINING), text, reason="test", time=time.time())  # fmt: skip

    def resolve(reference: str) -> str:
        return values[reference.rpartition("/")[2]]

    for way in ways:
        try:
            contract.send_notice(way, plan, [], notice, hosts, resolve)
        except contract.NotSent as error:
            raise DlctlError(f"{way}: {error.message}", hint=error.hint) from None
        yield way


def _append(session: Session, record: Record, line: Endpoint) -> None:
    """Append a line in one write: of two programs that register at once, neither loses its own."""
    path = contract.endpoints_file(session.site.root, record.training_id)
    folder, _, _ = path.rpartition("/")
    script = (
        f"umask 077; mkdir -p -- {shlex.quote(folder)} && line=$(cat) && "
        f"printf '\\n%s\\n' \"$line\" >>{shlex.quote(path)}"
    )
    content = json.dumps(asdict(line)).encode()
    done = session.transport.run(script, stdin=content, timeout_s=60)
    if done.exit_code:
        why = done.last_error_line
        raise TransferError(f"{session.transport.name}: can't write {path}: {why}")
