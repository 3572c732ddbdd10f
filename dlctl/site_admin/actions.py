"""Add, check and set up sites: the only module here that opens transports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl.errors import ManifestError, SiteError
from dlctl.site_admin.discovery import Discovered
from dlctl.site_admin.doctor import FAILED, Check, check_site, discover, doctor
from dlctl.site_admin.draft import make_site, site_text
from dlctl.site_admin.setup import (
    SETUP_TIMEOUT_S,
    SetupAnswer,
    parse_setup,
    setup_advice,
    setup_script,
)
from dlctl.sites.files import (
    Site,
    TransportSettings,
    check_name,
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


@dataclass(frozen=True)
class Added:
    """A site that was inspected, and its new file."""

    site: Site
    path: Path
    found: Discovered

    def summary(self) -> dict[str, object]:
        """Return what was found, in a few words."""
        found, site = self.found, self.site
        used = site.scheduler.kind == "slurm"
        slurm = f"{found.slurm_version} in {found.slurm_folder}" if used else "not used"
        return {
            "site": site.name,
            "file": str(self.path),
            "login node": f"{found.user} on {found.host}",
            "slurm": slurm,
            "partitions": ", ".join(site.partitions),
            "account": site.scheduler.account or "",
            "launcher": f"{site.launcher.kind} {site.launcher.mpi or ''}".strip(),
            "root": site.root,
            "python": site.environment.python or "not set up yet",
            "not answered": "\n".join(found.problems) if used else "",
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
    with _opened(transport, prompt) as connection:
        found = discover(connection)
    try:
        site = make_site(
            name, found, transport, root=root, python=python, without_slurm=without_slurm
        )
    except ValueError as error:
        raise SiteError(f"{name}: {error}", hint="check --root and --python") from error
    text = site_text(site, found)
    return Added(parse_site(name, text), save_site(name, text, force=force), found)


def check(name: str, prompt: Prompt | None = None) -> list[Check]:
    """Check a site against its file."""
    site = load_site(name)
    with _opened(site.transport, prompt) as connection:
        return check_site(site, connection)


def check_all(prompt: Prompt | None = None) -> list[Check]:
    """Check this machine, and whether every site answers."""
    return doctor(lambda settings: open_transport(settings, prompt))


def failed(checks: Sequence[Check]) -> bool:
    """Return whether anything failed."""
    return any(check.outcome == FAILED for check in checks)


def read_requirements(manifest: Path) -> list[str]:
    """Return a manifest's requirements, including those of a file that it names.

    Raises:
        ManifestError: the file can't be read, or holds pip options.
    """
    from dlctl.manifest.load import load_manifest

    found: list[str] = []
    for line in load_manifest(manifest).requirements:
        found += _lines(manifest.parent / line[3:].strip()) if line.startswith("-r ") else [line]
    return found


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(f"requirements: {path} can't be read: {error}") from error
    lines = [line.split(" #")[0].strip() for line in text.splitlines()]
    wanted = [line for line in lines if line and not line.startswith("#")]
    options = [line for line in wanted if line.startswith("-")]
    if options:
        raise ManifestError(
            f"requirements: {path} holds a pip option: {options[0]}",
            hint="pip options belong in environment.pip of the site's file",
        )
    # One word each, because the script on the site splits at blanks.
    return ["".join(line.split()) for line in wanted]


def prepare_setup(name: str, manifest: Path | None) -> tuple[list[str], str]:
    """Return a manifest's additional requirements, and what to know before the setup."""
    requirements = read_requirements(manifest) if manifest else []
    notes = ["this may take a few minutes", setup_advice(load_site(name))]
    return requirements, "\n".join(note for note in notes if note)


def setup_site(name: str, requirements: Sequence[str], prompt: Prompt | None = None) -> SetupAnswer:
    """Install the Python of a site's nodes and write it into the site's file.

    Raises:
        SiteError: one sentence that says why the setup failed.
        TransportError
    """
    site = load_site(name)
    with _opened(site.transport, prompt) as connection:
        end = connection.run(setup_script(site, requirements), timeout_s=SETUP_TIMEOUT_S)
    answer = parse_setup(name, end.exit_code, end.text, end.error_text)
    if answer.python != site.environment.python:
        set_python(name, answer.python)
    return answer


@contextmanager
def _opened(settings: TransportSettings, prompt: Prompt | None) -> Iterator[Transport]:
    transport = open_transport(settings, prompt)
    try:
        yield transport
    finally:
        transport.close()
