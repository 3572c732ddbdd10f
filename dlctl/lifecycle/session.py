"""An open site: the one place that holds a transport and a scheduler."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlctl.scheduler import Scheduler, make_scheduler
from dlctl.transport import Transport, open_transport
from dlctl.transport.base import Prompt

if TYPE_CHECKING:
    from dlctl.sites.files import Site


@dataclass
class Session:
    """An open site."""

    site: Site
    transport: Transport
    scheduler: Scheduler

    def close(self) -> None:
        """End the connection."""
        self.transport.close()


def open_session(site: Site, prompt: Prompt | None = None) -> Session:
    """Return the site's transport and scheduler; the transport connects at its first use."""
    settings = site.scheduler
    python = site.environment.python
    scheduler = make_scheduler(
        settings.kind,
        path=settings.path,
        accounting=settings.accounting,
        python=sys.executable if python == "auto" else python,
        cpus=settings.cpus,
    )
    return Session(site, open_transport(site.transport, prompt, site.name), scheduler)
