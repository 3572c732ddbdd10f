"""Ways to run a shell script on a site. `open_transport` picks one by its kind."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

from dlctl.transport.base import Completed, Process, Prompt, Transport

if TYPE_CHECKING:
    from dlctl.sites.files import TransportSettings

__all__ = ["Completed", "Process", "Prompt", "Transport", "open_transport", "remote_kind"]


def remote_kind() -> str:
    """Return the kind for a new site: `openssh` where there is a client that shares connections."""
    return "openssh" if shutil.which("ssh") and os.name != "nt" else "ssh"


def open_transport(
    settings: TransportSettings, prompt: Prompt | None = None, site: str = ""
) -> Transport:
    """Return the transport of a site. It connects on first use.

    Args:
        settings: Where to.
        prompt: Asks the user (passphrase, second factor); None: nobody is there.
        site: Its name, for hints; empty: it has none yet.
    """
    if settings.kind == "openssh":
        from dlctl.transport.openssh import OpensshTransport

        asks = prompt is not None and sys.stdin is not None and sys.stdin.isatty()
        connect = f"dlctl sites connect {site}" if site else ""
        return OpensshTransport(settings, connect, may_ask=asks)
    if settings.kind == "ssh":
        from dlctl.transport.ssh import SshTransport  # costs 0.1 s: only where it is used

        return SshTransport(settings, prompt)
    from dlctl.transport.local import LocalTransport

    return LocalTransport()
