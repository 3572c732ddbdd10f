"""Examine this machine, and one site or all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dlctl.doctor.at_site import check_at_site
from dlctl.doctor.chain import Chain, Link
from dlctl.doctor.deep import LINKS, check_by_job
from dlctl.doctor.here import check_machine
from dlctl.doctor.network import LIMIT_S, check_way
from dlctl.errors import SiteError
from dlctl.lifecycle.session import open_session
from dlctl.sites.files import list_sites, load_site

if TYPE_CHECKING:
    from dlctl.doctor.judged import Job
    from dlctl.sites.files import Site
    from dlctl.transport.base import Prompt


@dataclass
class Examined:
    """What the doctor has found."""

    links: list[Link] = field(default_factory=list)
    job: Job | None = None
    """What `--deep` has run, if it ran."""


def examine(
    name: str | None, *, deep: bool = False, prompt: Prompt | None = None,
    tell: Callable[[Link], None] = lambda _: None, note: Callable[[str], None] = lambda _: None,
) -> Examined:  # fmt: skip
    """Try every link of this machine, and of a site; without one, the way to each site.

    Args:
        name: The site; None: all.
        deep: Also send a short job to the site.
        prompt: Asks the user for a password.
        tell: Called with each link as soon as it is known.
        note: Called with a sentence about what takes long.

    Raises:
        SiteError: there is no such site, or its file is wrong.
    """
    found = Examined()
    site = load_site(name) if name else None
    here = Chain("", tell)
    check_machine(here, name or "")
    found.links += here.links
    if site is not None:
        chain = Chain(site.name, tell)
        found.job = _whole(chain, site, deep, prompt, note)
        found.links += chain.links
        return found
    for file in list_sites():
        try:
            each = load_site(file.name)
        except SiteError:
            continue  # a link of this machine says so
        if not file.example:
            chain = Chain(each.name, tell)
            _glance(chain, each, prompt)
            found.links += chain.links
    return found


def _whole(
    chain: Chain, site: Site, deep: bool, prompt: Prompt | None, note: Callable[[str], None]
) -> Job | None:  # fmt: skip
    session = open_session(_quick(site), prompt)
    try:
        check_way(chain, site, session.transport)
        check_at_site(chain, site, session.transport)
        if deep:
            return check_by_job(chain, session, note)
        why = f"only a job can tell: dlctl doctor {site.name} --deep"
        chain.skip(why, *LINKS[1:])
        return None
    finally:
        session.close()


def _glance(chain: Chain, site: Site, prompt: Prompt | None) -> None:
    """Try the way to a site; of this machine's own queue all that takes no job."""
    session = open_session(_quick(site), prompt)
    try:
        check_way(chain, site, session.transport)
        if site.transport.kind == site.scheduler.kind == "local":
            check_at_site(chain, site, session.transport)
    finally:
        session.close()


def _quick(site: Site) -> Site:
    limit_s = min(site.transport.connect_timeout_s, LIMIT_S)
    settings = site.transport.model_copy(update={"connect_timeout_s": limit_s})
    return site.model_copy(update={"transport": settings})
