"""Install the Python of a site's nodes: a script and a parser of its answer. Pure.

The environment is `<root>/env`: torch, mpi4py, h5py, numpy, watchdog in the range that the extra
`node` of this distribution names, torch in the version that dlctl is tested with. A marker, written
last, holds a hash of the request: repeating a setup does nothing, an interrupted one starts over.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires
from typing import TYPE_CHECKING

from dlctl.contract.ground.safe_text import lines_of
from dlctl.errors import SiteError
from dlctl.files.site_folders import see_space_lines
from dlctl.package_data import data_path
from dlctl.script_templates import render_script, set_up_lines

if TYPE_CHECKING:
    from dlctl import contract
    from dlctl.sites.files import Site
    from dlctl.sites.model import EnvironmentSettings

SETUP_TIMEOUT_S = 3600.0
_NEEDED_KIB = {False: 3 * 1024**2, True: 10 * 1024**2}
"""torch for CPUs, and with CUDA's libraries."""


@dataclass(frozen=True)
class SetupAnswer:
    """The result of a setup."""

    python: str
    notes: list[str]


def node_requirements(gpus: bool = False) -> list[str]:
    """Return what a node's Python needs: the extra `node` of this distribution.

    Args:
        gpus: whether to add the extra `gpu`.

    Raises:
        SiteError: dlctl runs from a folder and was never installed.
    """
    try:
        lines = requires("dlctl") or []
    except PackageNotFoundError:
        lines = []
    found = [line.partition(";") for line in lines]
    extras = "node|gpu" if gpus else "node"
    marker = re.compile(rf"extra\s*==\s*['\"]({extras})['\"]")
    needed = [r.strip() for r, _, when in found if marker.search(when)]
    if not needed:
        raise SiteError(
            "dlctl is not installed here", hint="install it with pip, then run this command again"
        )
    return needed


def pinned_torch() -> str:
    """Return the version of torch that dlctl is tested with, as pip names it."""
    lines = data_path("constraints.txt").read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith("torch=="))


def python_of(site: Site) -> str | None:
    """Return the site's Python; `auto` is the one that runs dlctl."""
    python = site.environment.python
    return sys.executable if python == "auto" else python


def setup_script(site: Site) -> str:
    """Return the script that finds or installs the site's Python."""
    # A source of the site's own may lack what only measures GPUs.
    packages = node_requirements(gpus=wants_cuda(site) and not site.environment.pip)
    if not any(word.startswith("torch") for word in site.environment.pip):
        packages = [pinned_torch() if p.startswith("torch") else p for p in packages]
    lines = [
        f"root={shlex.quote(site.root)}",
        f"asked={_digest(site, packages)}",
        f"given={shlex.quote(python_of(site) or '')}",
        f"needed_kib={_NEEDED_KIB[wants_cuda(site)]}",
        f"container={'yes' if site.environment.container else ''}",
        f'packages() {{ "$@" {shlex.join(packages)}; }}',
        "pip_options() { " + " ".join(['"$@"', *map(shlex.quote, site.environment.pip)]) + "; }",
    ]
    if site.environment.container:
        lines.append("python=$given")
    environment = shell_environment(site.environment, [site.root])
    return under_bash(
        "\n".join([*lines, see_space_lines(), environment, site_template("setup.sh")])
    )


def under_bash(script: str) -> str:
    """Return a script that runs `script` in bash, as jobs do, or in sh if there is no bash."""
    end = "DLCTL_SCRIPT_ENDS_HERE"
    choose = "shell=/bin/sh; command -v bash >/dev/null 2>&1 && shell='bash'"
    # dash hands on what a user exports for bash, and does not undo it as `known_state.sh` wants.
    begin = f"exec env -u SHELLOPTS $shell /dev/fd/9 9<<'{end}' </dev/null"
    return f"{choose}\n{begin}\n{script}\n{end}\n"


def shell_environment(
    settings: EnvironmentSettings | contract.Environment, folders: Sequence[str]
) -> str:
    """Return shell functions: `site_environment` (what runs before a job) and `in_container`.

    Args:
        folders: What a container has to see. The functions need a variable `python`.
    """
    lines = set_up_lines(settings).rstrip() or ":"
    container = " ".join([*map(shlex.quote, settings.container), '"$@"'])
    return (
        f"{site_template('environment.sh')}\nsite_environment() {{\n{lines}\n}}\n"
        f"in_container() {{\n{_binds(folders) if settings.container else ''}{container}; }}"
    )


def _binds(folders: Sequence[str]) -> str:
    return render_script("container.sh.j2", folders=folders)


def wants_cuda(site: Site) -> bool:
    """Return whether torch comes with CUDA: the site has GPUs and no CPU index is set."""
    if any("whl/cpu" in option for option in site.environment.pip):
        return False
    return any(limits.gpus_per_node for limits in site.partitions.values())


def setup_advice(site: Site) -> str:
    """Return what to know before a setup, or nothing."""
    if site.environment.pip or wants_cuda(site):
        return ""
    return (
        "this site has no GPUs, and torch from the usual index may bring several GB of CUDA: "
        "environment.pip: [--extra-index-url, https://download.pytorch.org/whl/cpu] avoids that"
    )


def parse_setup(name: str, exit_code: int, text: str, errors: str) -> SetupAnswer:
    """Return the Python that the site now has.

    Raises:
        SiteError: one sentence that says why the setup failed.
    """
    words = by_kind(text)
    if exit_code == 0 and words.get("python"):
        return SetupAnswer(words["python"][-1], words.get("note", []))
    last = ([line.strip() for line in lines_of(errors) if line.strip()] or ["no message"])[-1]
    why = words.get("failed", [f"the setup ended with exit code {exit_code}: {last}"])[-1]
    hint = words.get("hint", ["run the same command again; it starts over"])[-1]
    raise SiteError(f"{name}: {why}", hint=hint)


def by_kind(text: str) -> dict[str, list[str]]:
    """Return what a script has said in lines `dlctl-KIND TEXT`, by kind. Pure."""
    found: dict[str, list[str]] = {}
    for line in lines_of(text):
        kind, _, rest = line.partition(" ")
        if kind.startswith("dlctl-"):
            found.setdefault(kind.removeprefix("dlctl-"), []).append(rest.strip())
    return found


def site_template(name: str) -> str:
    """Return one of the shell files in `templates/sites/`."""
    return (data_path("templates") / "sites" / name).read_text(encoding="utf-8")


def _digest(site: Site, packages: Sequence[str]) -> str:
    settings = site.environment
    parts = [*packages, "", *settings.pip, "", *settings.modules, "", *settings.setup]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
