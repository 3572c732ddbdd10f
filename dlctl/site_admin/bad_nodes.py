"""The nodes of a site that failed a training lately, which the next trainings avoid."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable

from dlctl import contract
from dlctl.contract import BadNode, ContractError
from dlctl.errors import SiteError
from dlctl.sites.files import Site, load_site
from dlctl.transport import open_transport

Prompt = Callable[[str, bool], str]
_TIMEOUT_S = 60.0
_MARK = "\x1e"


def bad_nodes(name: str, prompt: Prompt | None = None) -> list[BadNode]:
    """Return the nodes that a site avoids now, the newest first."""
    site = load_site(name)
    script = f"""\
for f in {_folder(site)}/*.json; do
    [ ! -f "$f" ] || {{ cat <"$f" && printf '\\036'; }}
done"""
    found = []
    for text in _run(site, script, prompt).split(_MARK)[:-1]:
        try:
            found.append(contract.from_json(BadNode, text))
        except ContractError:  # of a newer version
            continue
    now = time.time()
    return sorted((n for n in found if n.expires_at > now), key=lambda n: -n.seen_at)


def forget(name: str, host: str, prompt: Prompt | None = None) -> BadNode:
    """Let trainings run on a node again; return what was known of it.

    Raises:
        SiteError: the site does not avoid that node.
    """
    known = {node.host: node for node in bad_nodes(name, prompt)}
    if host not in known:
        avoided = ", ".join(known) or "none"
        raise SiteError(f"{name} does not avoid the node {host!r}", hint=f"it avoids: {avoided}")
    site = load_site(name)
    _run(site, f"rm -f -- {_folder(site)}/{shlex.quote(host)}.json", prompt)
    return known[host]


def _folder(site: Site) -> str:
    return shlex.quote(f"{site.root}/{contract.NODES}")


def _run(site: Site, script: str, prompt: Prompt | None) -> str:
    transport = open_transport(site.transport, prompt, site.name)
    try:
        end = transport.run(script, timeout_s=_TIMEOUT_S)
    finally:
        transport.close()
    if end.exit_code != 0:
        said = end.stderr.decode(errors="replace").strip()
        raise SiteError(f"{site.name}: the list of its nodes can't be read or changed: {said}",
                        hint=f"dlctl sites check {site.name}")  # fmt: skip
    return end.stdout.decode(errors="replace")
