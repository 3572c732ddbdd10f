"""Examine this machine, and one site or all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dlctl.doctor.at_site import check_at_site
from dlctl.doctor.chain import Chain, Link
from dlctl.doctor.deep import check_by_job
from dlctl.doctor.job_checks import LINKS, Job
from dlctl.doctor.local_checks import check_machine
from dlctl.doctor.network import LIMIT_S, check_way
from dlctl.errors import SiteError
from dlctl.lifecycle.session import open_session
from dlctl.sites.files import list_sites, load_site

if TYPE_CHECKING:
    from dlctl.sites.files import Site
    from dlctl.transport.base import Prompt


@dataclass
class Examined:
    """The doctor's findings."""

    links: list[Link] = field(default_factory=list)
    job: Job | None = None
    """The job of `--deep`, if it ran."""


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
    sites = [load_site(name)] if name else []
    check_machine(machine := Chain("", tell), name or "")
    found.links += machine.links
    for file in [] if name else list_sites():
        with contextlib.suppress(SiteError):  # a link of this machine says so
            sites += [] if file.example else [load_site(file.name)]
    for site in sites:
        chain = Chain(site.name, tell)
        session = open_session(_quick(site), prompt)
        try:
            check_way(chain, site, session.transport)
            if name or site.transport.kind == site.scheduler.kind == "local":
                check_at_site(chain, session)
            if deep:
                found.job = check_by_job(chain, session, note)
            elif name:
                chain.skip(f"only a job can tell: dlctl doctor {name} --deep", *LINKS[1:])
        finally:
            session.close()
        found.links += chain.links
    return found


def _quick(site: Site) -> Site:
    limit_s = min(site.transport.connect_timeout_s, LIMIT_S)
    settings = site.transport.model_copy(update={"connect_timeout_s": limit_s})
    return site.model_copy(update={"transport": settings})
