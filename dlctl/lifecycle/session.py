"""An open site: the one place that holds a transport and a scheduler."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dlctl.errors import PlanError
from dlctl.scheduler import Scheduler, make_scheduler
from dlctl.transport import Transport, open_transport
from dlctl.transport.base import Prompt
from dlctl.transport.resident import Resident

if TYPE_CHECKING:
    from dlctl.scheduler.base import Job
    from dlctl.sites.files import Site


@dataclass
class Session:
    """An open site."""

    site: Site
    transport: Transport
    scheduler: Scheduler
    queue: tuple[float, list[Job], str] | None = None
    """The newest answer of `read_queue`, and of a look at trainings."""

    @property
    def lack(self) -> str:
        """Return why no job can run, if the site is this machine and no Linux; empty: they can."""
        return self.scheduler.lack_here() if self.site.transport.kind == "local" else ""

    def expect_jobs(self) -> None:
        """Refuse to submit where no job can run.

        Raises:
            PlanError
        """
        if self.lack:
            raise PlanError(f"the site {self.site.name} is this machine: {self.lack}",
                            hint="--site NAME names a cluster: `dlctl sites list`; on Windows use "
                            "WSL")  # fmt: skip

    def close(self) -> None:
        """End the connection."""
        self.transport.close()

    def stay(self) -> Session:
        """Return the site with a shell that stays there, for a client that looks again and again.

        Its `close` ends that shell, and the connection.
        """
        return replace(self, transport=self._resident())

    @contextmanager
    def staying(self) -> Iterator[Session]:
        """Yield what `stay` returns; at the end the connection stays open."""
        resident = self._resident()
        try:
            yield replace(self, transport=resident)
        finally:
            resident.leave()

    def _resident(self) -> Resident:
        return Resident(self.transport, self.scheduler.prologue())


def open_session(site: Site, prompt: Prompt | None = None) -> Session:
    """Return the site's transport and scheduler; the transport connects at its first use."""
    settings = site.scheduler
    # The machine itself runs its queue, whatever a container has.
    python = "python3" if site.environment.container else site.environment.python
    scheduler = make_scheduler(
        settings.kind,
        path=settings.path,
        accounting=settings.accounting,
        python=sys.executable if python == "auto" else python,
        cpus=settings.cpus,
    )
    return Session(site, open_transport(site.transport, prompt, site.name), scheduler)
