"""Ways to run a shell script on a site. `open_transport` picks one by its kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlctl.transport.base import Completed, Process, Prompt, Transport

if TYPE_CHECKING:
    from dlctl.sites.files import TransportSettings

__all__ = ["Completed", "Process", "Prompt", "Transport", "open_transport"]


def open_transport(
    settings: TransportSettings, prompt: Prompt | None = None, site: str = "NAME"
) -> Transport:
    """Return the transport of a site. It connects on first use.

    Without a `prompt`, questions (passphrase, second factor) go to the terminal, if any. The site's
    name is for hints.
    """
    if settings.kind == "openssh":
        from dlctl.transport.openssh import OpensshTransport

        return OpensshTransport(settings, f"dlctl sites connect {site}")
    if settings.kind == "ssh":
        from dlctl.transport.ssh import SshTransport  # costs 0.1 s: only where it is used

        return SshTransport(settings, prompt)
    from dlctl.transport.local import LocalTransport

    return LocalTransport()
