"""Add, check and set up sites: the only module here that opens transports."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl.errors import SiteError
from dlctl.site_admin.check import FAILED, Check
from dlctl.site_admin.discovery import Discovered
from dlctl.site_admin.doctor import check_site, discover
from dlctl.site_admin.draft import make_site, site_text
from dlctl.site_admin.node_probe import check_on_node
from dlctl.site_admin.setup import (
    SETUP_TIMEOUT_S,
    SetupAnswer,
    parse_setup,
    python_of,
    setup_advice,
    setup_script,
)
from dlctl.sites.files import (
    Site,
    TransportSettings,
    check_name,
    find_site,
    list_sites,
    load_site,
    parse_site,
    save_site,
    set_python,
    user_directory,
)
from dlctl.transport import open_transport

if TYPE_CHECKING:
    from dlctl.transport import Transport

Prompt = Callable[[str, bool], str]
_STAYS = "one for all commands, because the site asks questions: dlctl sites connect opens it"


@dataclass(frozen=True)
class Added:
    """A site that was inspected, and its new file."""

    site: Site
    path: Path
    found: Discovered

    def summary(self) -> dict[str, object]:
        """Return what was found, in a few words."""
        found, site = self.found, self.site
        used = site.scheduler.allocates
        slurm = f"{found.slurm_version} in {found.slurm_folder}" if used else "not used"
        return {
            "site": site.name,
            "file": str(self.path),
            "login_node": f"{found.user} on {found.host}",
            "slurm": slurm,
            "partitions": ", ".join(site.partitions),
            "connection": _STAYS if site.transport.kind == "openssh" else "",
            "account": site.scheduler.account or "",
            "launcher": f"{site.launcher.kind} {site.launcher.mpi or ''}".strip(),
            "root": site.root,
            "python": site.environment.python or "not set up yet",
            "not_answered": "\n".join(found.problems) if used else "",
        }


def parse_target(target: str, port: int | None = None) -> TransportSettings:
    """Return how to reach `user@host`, a host or alias, or `local`, this machine.

    Raises:
        SiteError: the text names no host.
    """
    if target == "local":
        return TransportSettings(kind="local")
    user, _, host = target.rpartition("@")
    try:
        return TransportSettings(kind="ssh", host=host, user=user or None, port=port)
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
    without_slurm: bool = False,
    force: bool = False,
    prompt: Prompt | None = None,
) -> Added:
    """Inspect a site and write its file.

    Raises:
        SiteError: the file exists already, or the site's answer is unusable.
        TransportError
    """
    check_name(name)
    path = user_directory() / f"{name}.yml"
    if name in {file.name for file in list_sites() if file.shipped} and not force:
        raise SiteError(
            f"{name} is a site that dlctl ships; a file of your own would take its place",
            hint="choose another name, or --force",
        )
    if path.exists() and not force:
        raise SiteError(f"the site {name} already exists: {path}", hint="--force replaces it")
    asked: list[str] = []

    def ask(text: str, hidden: bool) -> str:
        assert prompt is not None
        asked.append(text)
        return prompt(text, hidden)

    with _opened(transport, ask if prompt else None, name) as connection:
        found = discover(connection)
    # A question a day, and not one at each command; the ssh of Windows shares no connections.
    if asked and shutil.which("ssh") and os.name != "nt":
        transport = transport.model_copy(update={"kind": "openssh"})
    try:
        site = make_site(
            name, found, transport, root=root, python=python, without_slurm=without_slurm
        )
    except ValueError as error:
        raise SiteError(f"{name}: {error}", hint="check --root and --python") from error
    text = site_text(site, found)
    return Added(parse_site(name, text), save_site(name, text, force=force), found)


def check(name: str, prompt: Prompt | None = None, *, on_node: bool = False) -> list[Check]:
    """Check a site against its file.

    Args:
        on_node: try in a short job, too, what only a node can tell.
    """
    site = load_site(name)
    with _opened(site.transport, prompt, name) as connection:
        checks = check_site(site, connection)
        if on_node and site.scheduler.allocates and checks[0].outcome != FAILED:
            checks += check_on_node(site, connection)
        return checks


def failed(checks: Sequence[Check]) -> bool:
    """Return whether anything failed."""
    return any(check.outcome == FAILED for check in checks)


def setup_notes(name: str) -> str:
    """Return what to know before a setup."""
    notes = ["this may take a few minutes", setup_advice(load_site(name))]
    return "\n".join(note for note in notes if note)


def setup_site(name: str, prompt: Prompt | None = None) -> SetupAnswer:
    """Install the Python of a site's nodes and write it into the site's file.

    Raises:
        SiteError: one sentence that says why the setup failed.
        TransportError
    """
    site = load_site(name)
    with _opened(site.transport, prompt, name) as connection:
        end = connection.run(setup_script(site), timeout_s=SETUP_TIMEOUT_S)
    answer = parse_setup(name, end.exit_code, end.text, end.error_text)
    if answer.python == python_of(site):
        return answer
    shipped = find_site(name).shipped
    path = set_python(name, answer.python)
    if not shipped:
        return answer
    told = f"wrote {path}, which takes the place of the site that dlctl ships"
    return replace(answer, notes=[*answer.notes, f"{told}; `dlctl sites remove {name}` undoes it"])


@contextmanager
def _opened(settings: TransportSettings, prompt: Prompt | None, site: str) -> Iterator[Transport]:
    transport = open_transport(settings, prompt, site)
    try:
        yield transport
    finally:
        transport.close()
