"""Runs scripts over ssh. The only module that imports paramiko."""

from __future__ import annotations

from dlctl.errors import ConnectError
from dlctl.site import TransportSettings
from dlctl.transport import Prompt
from dlctl.transport.script import ScriptTransport, Streams


class SshTransport(ScriptTransport):
    """One connection to a host."""

    def __init__(self, settings: TransportSettings, prompt: Prompt | None = None) -> None:
        self.name = str(settings.host)
        self._prompt = prompt

    def _open(self, command: str) -> Streams:
        raise ConnectError(f"{self.name}: ssh is being written ({command[:4]})")

    def close(self) -> None:
        """End the connection; idempotent."""
