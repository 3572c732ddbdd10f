"""Install what a manifest requires, before its job is queued: see `learner.requirements`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePosixPath

from dlctl import contract
from dlctl.errors import ResultsError, SiteError
from dlctl.lifecycle.remote_module import SiteRuntime, run_module
from dlctl.lifecycle.session import Session
from dlctl.lifecycle.submit import lacking_runtime, send
from dlctl.site_admin.setup import SETUP_TIMEOUT_S


def bring_runtime(session: Session) -> SiteRuntime:
    """Send this version's runtime to a site that lacks it, and return what runs modules of it.

    Raises:
        SiteError: the site has no Python for its nodes.
        TransportError
    """
    from dlctl.request.runtime import runtime_entries

    site, settings = session.site, session.site.environment
    if settings.python is None:
        raise SiteError(
            f"the site {site.name} has no Python for its nodes yet",
            hint=f"`dlctl sites setup {site.name}` makes one; or set environment.python",
        )
    environment = contract.Environment(
        python=sys.executable if settings.python == "auto" else settings.python,
        modules=list(settings.modules), setup=list(settings.setup),
        container=list(settings.container), variables=dict(settings.variables),
    )  # fmt: skip
    folder = f"{site.root}/runtime/{runtime_entries()[0]}"
    made = SiteRuntime(site.name, site.root, folder, f"{site.umask:03o}", environment)
    send(session, site.root, lacking_runtime(session, made))
    return made


def make_environment(
    session: Session, plan: contract.Plan, on_line: Callable[[str], None] | None = None
) -> None:
    """Make the environment of a plan's requirements at the site, unless it is there.

    Args:
        on_line: Called with a sentence if something has to be installed, which may take minutes.

    Raises:
        SiteError: pip could not install them: its most telling line.
        TransportError
    """
    settings = plan.made_environment
    if settings is None or settings.site_python is None:
        return
    send(session, plan.root, lacking_runtime(session, plan))
    folder = str(PurePosixPath(settings.python).parent.parent)
    options = json.dumps(list(session.site.environment.pip))

    def tell(line: str) -> None:
        if on_line is not None and line.startswith("installing "):  # a module system may talk, too
            on_line(line)

    with_site_python = replace(plan, environment=replace(settings, python=settings.site_python))
    try:
        run_module(
            session, with_site_python, "learner.requirements",
            [folder, options, *plan.requirements], timeout_s=SETUP_TIMEOUT_S, on_line=tell,
        )  # fmt: skip
    except ResultsError as fault:
        raise SiteError(
            f"nothing was queued, because the manifest's requirements can't be installed on "
            f"{plan.site}: {fault.message}",
            hint=fault.hint,
        ) from fault
