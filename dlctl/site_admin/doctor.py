"""Checks of a site against its file, and of this machine, as lists of `Check`.

Functions that look at a site take a `Transport`. They print and change nothing, except that they
write a probe file below the site's root and remove it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl.contract.launchers import LAUNCHERS, LaunchRequest
from dlctl.errors import DlctlError, SiteError, TransportError
from dlctl.files.site_folders import all_damaged, doubtful_above
from dlctl.site_admin.check import FAILED, OK, WARNING, Check
from dlctl.site_admin.discovery import MINIMUM_PYTHON, Discovered, discovery_script, parse_discovery
from dlctl.site_admin.setup import environment_script, python_of, site_template, under_bash
from dlctl.site_admin.slurm_checks import check_slurm
from dlctl.sites.files import Site, list_sites, load_site
from dlctl.units import format_bytes

if TYPE_CHECKING:
    from dlctl.transport.base import Transport

_DISCOVERY_TIMEOUT_S = 180.0
_NODE_TIMEOUT_S = 180.0
_LITTLE_SPACE_BYTES = 5 * 1024**3


def discover(transport: Transport) -> Discovered:
    """Inspect a site.

    Raises:
        TransportError, SiteError
    """
    end = transport.run(discovery_script(), timeout_s=_DISCOVERY_TIMEOUT_S)
    return parse_discovery(end.text)


def check_site(site: Site, transport: Transport) -> list[Check]:
    """Check a site against its file: connection, scheduler, partitions, root, Python, launcher."""
    try:
        found = discover(transport)
    except (TransportError, SiteError) as error:
        return [Check("connection", FAILED, error.message, error.hint)]
    checks = [Check("connection", OK, f"{found.user} on {found.host}")]
    if site.scheduler.allocates:
        checks += check_slurm(site, found)
    checks += check_node(site, found, transport)
    return [*checks, *check_above(site, transport), check_sent(site, transport)]


def check_above(site: Site, transport: Transport) -> list[Check]:
    """Check whether some other users could replace the root because a folder above it is theirs."""
    try:
        found = doubtful_above(transport, site.root)
    except DlctlError as error:
        return [Check("above the root", FAILED, error.message, error.hint)]
    hint = "these users could make your jobs run their code: trust them, or set root elsewhere"
    return [Check("above the root", WARNING, ", ".join(found), hint)] if found else []


def check_sent(site: Site, transport: Transport) -> Check:
    """Check that the root is the user's alone, and that what was sent there is whole."""
    try:
        harmed = all_damaged(transport, site.root)
    except DlctlError as error:
        return Check("sent files", FAILED, error.message, error.hint)
    if harmed:
        names = ", ".join(harmed[:3]) + (f" and {len(harmed) - 3} more" if len(harmed) > 3 else "")
        hint = "a submission or a resumption that needs one of them sends it again"
        return Check("sent files", WARNING, f"no longer what was sent: {names}", hint)
    return Check("sent files", OK, "whole, and yours alone")


def node_script(site: Site) -> str:
    """Return the questions that need the site's modules and its Python."""
    python = python_of(site)
    head = [
        f"root={shlex.quote(site.root)}",
        f"python={shlex.quote(python or '')}",
        f"mpirun={shlex.quote(site.launcher.executable or 'mpirun')}",
        f"own_pythons={shlex.quote(' '.join(_own_pythons(site).values()))}",
    ]
    return under_bash("\n".join([*head, environment_script(site), site_template("check.sh")]))


def check_node(site: Site, found: Discovered, transport: Transport) -> list[Check]:
    """Check root, Python and launcher, as jobs will find them."""
    try:
        end = transport.run(node_script(site), timeout_s=_NODE_TIMEOUT_S)
    except TransportError as error:
        return [Check("environment", FAILED, error.message, error.hint)]
    answers: dict[str, list[str]] = {}
    for line in end.lines:
        kind, _, rest = line.partition(" ")
        answers.setdefault(kind.removeprefix("dlctl-"), []).append(rest.strip())
    if "failed" in answers:
        hint = answers.get("hint", [""])[0]
        return [Check("environment", FAILED, answers["failed"][0], hint)]
    if not ({"root", "unwritable"} & answers.keys()):
        why = end.last_error_line or f"exit code {end.exit_code}"
        hint = "check environment.setup in the site's file"
        return [Check("environment", FAILED, f"the site's own shell lines failed: {why}", hint)]
    return [
        _root(site, answers),
        *_python_checks(site, answers),
        *_environments(site, answers),
        _launcher(site, found, answers),
    ]


def _root(site: Site, answers: dict[str, list[str]]) -> Check:
    if "unwritable" in answers:
        why = answers["unwritable"][0] or "can't be written"
        return Check(
            "root", FAILED, f"{site.root}: {why}", "set root to a folder that you may write to"
        )
    kib = answers["root"][0]
    free_bytes = int(kib) * 1024 if kib.isdecimal() else None
    if free_bytes is None:
        return Check("root", OK, f"{site.root} is writable")
    seen = f"{site.root} is writable, {format_bytes(free_bytes)} free"
    if free_bytes < _LITTLE_SPACE_BYTES:
        return Check("root", WARNING, seen, "make room, or set root to a larger file system")
    return Check("root", OK, seen)


def _python_checks(site: Site, answers: dict[str, list[str]]) -> list[Check]:
    setup = f"dlctl sites setup {site.name}"
    python = site.environment.python
    if python is None:
        return [Check("python", FAILED, "environment.python is not set", setup)]
    if "python" not in answers:
        return [Check("python", FAILED, f"{python} does not start on the site", setup)]
    version = tuple(int(part) for part in answers["python"][0].split("."))
    if version < MINIMUM_PYTHON:
        old = f"{python} is {answers['python'][0]}, 3.10 or newer is needed"
        return [Check("python", FAILED, old, setup)]
    checks = [Check("python", OK, f"{answers['python'][0]} ({python})")]
    for line in answers.get("package", []):
        name, _, number = line.partition(" ")
        checks.append(Check(name, OK, number))
    for line in answers.get("missing", []):
        name, _, why = line.partition(" ")
        checks.append(Check(name, FAILED, why, setup))
    checks += _gpus(site, answers)
    if "mpi" in answers:
        return [*checks, Check("mpi library", OK, answers["mpi"][0])]
    why = answers.get("no-mpi", ["no answer"])[0]
    hint = f"{setup}, or load a module with an MPI; one learner needs none"
    return [*checks, Check("mpi library", WARNING, why, hint)]


def _gpus(site: Site, answers: dict[str, list[str]]) -> list[Check]:
    """Check whether the nodes' GPUs, if there are any, can be measured."""
    there = any(limits.gpus_per_node for limits in site.partitions.values())
    if not there and answers.get("gpus", ["0"])[0] == "0":
        return []
    if "nvml" in answers:
        seen = f"can be measured (nvidia-ml-py {answers['nvml'][0]})"
        return [Check("gpus", OK, seen)]
    why = answers.get("no-nvml", ["no answer"])[0]
    seen = f"can't be measured, because the nodes' Python lacks nvidia-ml-py: {why}"
    hint = f"on the site: {python_of(site)} -m pip install nvidia-ml-py"
    if site.environment.container:
        hint = "add the Python package nvidia-ml-py to the container's image"
    return [Check("gpus", WARNING, seen, hint)]


def _own_pythons(site: Site) -> dict[str, str]:
    """Return the Python of each of the site's environments whose Python is a file there."""
    return {
        name: each.python
        for name, each in site.environments.items()
        if each.python and not each.container and " " not in each.python
    }


def _environments(site: Site, answers: dict[str, list[str]]) -> list[Check]:
    """Return whether the Pythons of the site's environments are there. Pure."""
    absent = {name: p for name, p in _own_pythons(site).items() if p in answers.get("absent", [])}
    name = "environments"
    if absent:
        seen = "; ".join(f"{each}: there is no {python}" for each, python in absent.items())
        return [Check(name, FAILED, seen, "correct environments in the site's file")]
    told = [f"{each} ({', '.join(environment.frameworks)})"
            for each, environment in site.environments.items()]  # fmt: skip
    return [Check(name, OK, ", ".join(told))] if told else []


def _launcher(site: Site, found: Discovered, answers: dict[str, list[str]]) -> Check:
    settings, path = site.launcher, answers.get("mpirun", [""])[0]
    request = LaunchRequest(1, 1, 1, settings.executable, settings.mpi, settings.extra)
    lack = LAUNCHERS[settings.kind].lack(request, found.mpi_types, path, site.name)
    if lack is not None:
        return Check("launcher", FAILED if lack.fatal else WARNING, lack.what, lack.hint)
    told = f" --mpi={settings.mpi}" if settings.mpi else ""
    return Check("launcher", OK, path if settings.kind == "mpirun" else f"{settings.kind}{told}")


def check_here() -> list[Check]:
    """Check this machine: Python, ssh client, ssh agent, site files."""
    version = ".".join(map(str, sys.version_info[:3]))
    checks = [Check("python", OK, f"{version} ({sys.executable})"), _ssh_client(), _ssh_agent()]
    for file in list_sites():
        try:
            load_site(file.name)
            checks.append(Check(f"file of {file.name}", OK, str(file.path)))
        except SiteError as error:
            checks.append(Check(f"file of {file.name}", FAILED, error.message, error.hint))
    return checks


def _ssh_client() -> Check:
    path = shutil.which("ssh")
    if path is None:
        seen = "no ssh client: dlctl reads only part of ~/.ssh/config"
        return Check("ssh client", WARNING, seen, "install openssh-client")
    return Check("ssh client", OK, path)


def _ssh_agent() -> Check:
    socket, program = os.environ.get("SSH_AUTH_SOCK"), shutil.which("ssh-add")
    hint = 'eval "$(ssh-agent)" and ssh-add; without an agent, dlctl reads keys from files'
    if not socket or not program:
        return Check("ssh agent", WARNING if program else OK, "none", hint if program else "")
    try:
        end = subprocess.run([program, "-l"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return Check("ssh agent", WARNING, f"no answer at {socket}", hint)
    if end.returncode == 2 or not Path(socket).exists():
        return Check("ssh agent", WARNING, f"no answer at {socket}", hint)
    keys = len(end.stdout.splitlines()) if end.returncode == 0 else 0
    return Check("ssh agent", OK if keys else WARNING, f"{keys} keys", "" if keys else "ssh-add")
