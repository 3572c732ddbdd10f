"""The links at a site without a job: folders, Python, packages, launcher, Slurm, accounting."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from dlctl.contract.ground.safe_text import lines_of
from dlctl.doctor.chain import BROKEN, OK, WARN, Chain
from dlctl.site_admin.doctor import check_above, check_node, check_sent, discover
from dlctl.site_admin.slurm_checks import check_accounting, check_slurm

if TYPE_CHECKING:
    from dlctl.site_admin.discovery import Discovered
    from dlctl.sites.files import Site
    from dlctl.transport import Transport

_FEW_INODES = 20_000
_ON_SLURM = ("account", "next attempt")


def check_at_site(chain: Chain, site: Site, transport: Transport) -> None:
    """Try what a site has, as far as its login node tells."""
    found: list[Discovered] = []

    def inspect() -> None:
        found.append(discover(transport))

    chain.ask("inspection", ["log-in", "shell"], inspect)
    if not found:
        why = chain.lacks(["log-in", "shell", "inspection"]) or "not tried"
        return chain.skip(why, "root", "room", "python", "launcher", "slurm", "accounting")
    chain.add_checks(check_node(site, found[0], transport))
    chain.ask("room", ["root"], lambda: _room(chain, site, transport, found[0]))
    chain.add_checks(check_above(site, transport))
    chain.ask("sent files", ["root"], lambda: chain.add_checks([check_sent(site, transport)]))
    if site.scheduler.allocates:
        return _slurm(chain, site, found[0])
    return chain.add("scheduler", OK, "dlctl's own queue on that machine")


def _slurm(chain: Chain, site: Site, found: Discovered) -> None:
    chain.add_checks(check_slurm(site, found))
    if chain.state("slurm") == BROKEN:
        return chain.skip("not tried: slurm is broken", "partitions", "accounting", *_ON_SLURM)
    if chain.state("partitions") == BROKEN:
        chain.skip("not tried: partitions is broken", *_ON_SLURM)
    if not chain.state("accounting"):
        chain.add_checks([check_accounting(site, found)])
    return None


def _room(chain: Chain, site: Site, transport: Transport, found: Discovered) -> None:
    """Look for a lack of inodes, which looks like a full disk that has room, and for the quota."""
    root = shlex.quote(site.root)
    end = transport.run(f"df -Pi {root} 2>/dev/null | awk 'END {{ print $2, $4, $6 }}'")
    words = end.text.split()
    quota = "; ".join(line.strip() for line in lines_of(found.quota)[2:])
    told = f"quota: {quota}" if quota else "the site tells no quota (`quota -w`)"
    if len(words) < 2 or not all(map(str.isdecimal, words[:2])) or words[0] == "0":
        return chain.add("room", OK, told)
    free = int(words[1])
    seen = f"room for {free:,} more files; {told}"
    if free < _FEW_INODES:
        return chain.add("room", WARN, seen, f"remove files there: dlctl du {site.name}")
    return chain.add("room", OK, seen)
