"""The links on this machine: Python, ssh, the folders and the local record, the site files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from dlctl.doctor.chain import BROKEN, OK, WARN, Chain
from dlctl.record import RecordStore, state_directory
from dlctl.record.file import is_damaged
from dlctl.sites.files import SiteFile, list_sites, load_site, user_directory
from dlctl.sites.model import xdg_directory
from dlctl.units import counted, format_bytes

_LITTLE_BYTES = 200_000_000


def check_machine(chain: Chain, site: str = "") -> None:
    """Try the links of this machine.

    Args:
        site: The only site whose file matters; empty: all.
    """
    version = ".".join(map(str, sys.version_info[:3]))
    chain.add("python", OK, f"{version} ({sys.executable})")
    ssh = shutil.which("ssh")
    evidence = ssh or "no ssh client: dlctl reads only part of ~/.ssh/config"
    chain.add("ssh client", OK if ssh else WARN, evidence, "install openssh-client")
    check_agent(chain)
    for file in list_sites():
        if site in ("", file.name):
            chain.ask(f"file of {file.name}", [], partial(_file, chain, file))
    chain.ask("local folders", [], lambda: _folders(chain))
    chain.ask("local record", ["local folders"], lambda: _record(chain))


def _file(chain: Chain, file: SiteFile) -> None:
    load_site(file.name)
    chain.add(f"file of {file.name}", OK, str(file.path))


def check_agent(chain: Chain) -> None:
    """Ask the ssh agent for its keys."""
    socket, program = os.environ.get("SSH_AUTH_SOCK"), shutil.which("ssh-add")
    fix = 'eval "$(ssh-agent)" and ssh-add; without an agent, dlctl reads keys from files'
    if not socket or not program:
        return chain.add("ssh agent", WARN if program else OK, "none", fix)
    try:
        end = subprocess.run([program, "-l"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        end = None
    if end is None or end.returncode == 2 or not Path(socket).exists():
        return chain.add("ssh agent", WARN, f"no answer at {socket}", fix)
    keys = len(end.stdout.splitlines()) if end.returncode == 0 else 0
    return chain.add("ssh agent", OK if keys else WARN, counted(keys, "key"), "ssh-add")


def _folders(chain: Chain) -> None:
    places = {
        "state": state_directory(), "sites": user_directory(),
        "cache": xdg_directory("XDG_CACHE_HOME", ".cache") / "dlctl",
    }  # fmt: skip
    for name, folder in places.items():
        if why := _unwritable(folder):
            fix = "make it writable, or set XDG_STATE_HOME, XDG_CONFIG_HOME or XDG_CACHE_HOME"
            return chain.add("local folders", BROKEN, f"{name}: {why}", fix)
    free_bytes = shutil.disk_usage(places["state"]).free
    return chain.add("local folders", WARN if free_bytes < _LITTLE_BYTES else OK,
                     f"can be written, {format_bytes(free_bytes)} free",
                     f"make room at {places['state']}")  # fmt: skip


def _unwritable(folder: Path) -> str:
    """Return why nothing can be written into a folder, or into the nearest one above it."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=there) as probe:
            probe.write(b"x")
            probe.flush()
    except OSError as error:
        return f"{there}: {error.strerror or error}"
    return ""


def _record(chain: Chain) -> None:
    problems: list[str] = []
    store = RecordStore(tell=problems.append)
    if is_damaged(store.path):
        fix = "dlctl adopt SITE, for each site: it keeps the damaged file aside"
        return chain.add("local record", BROKEN, f"{store.path} is damaged", fix)
    known = store.all()
    if problems:
        return chain.add("local record", WARN, problems[0], "update dlctl")
    if not known:
        evidence = "empty; `dlctl adopt SITE` fills it with what a site has"
        return chain.add("local record", OK, evidence)
    return chain.add("local record", OK, f"{counted(len(known), 'training')} in {store.path}")
