"""Registered webhooks, and all ways in which a training's notices go."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from dlctl.contract.files import understood
from dlctl.contract.notices.notice import Notify


@dataclass(frozen=True)
class Endpoint:
    """A webhook; one that was registered after the submission is a line of `endpoints_file`."""

    id: str
    """Up to 64 letters, digits, `_` and `-`."""
    event: str
    """`started`, `failed`, `plateau` or `finished`."""
    url: str = field(default="", repr=False)
    """Empty: the endpoint was removed."""
    secret: str = field(default="", repr=False)
    """Signs what is sent: `whsec_` and 24 to 64 bytes in base64; empty: nothing is signed."""

    @property
    def way(self) -> str:
        """Return its part of the name of the file that claims a notice."""
        return f"webhook-{self.id}"


ENDPOINT_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def endpoints_file(root: str, training_id: str) -> str:
    """Return the JSON lines of a training's endpoints; of those with the same id the last counts.

    Among its secrets: a URL often holds one.
    """
    return f"{root}/secrets/{training_id}/endpoints"


def parse_endpoints(text: str) -> list[Endpoint]:
    """Return the endpoints that a file has; a line that a crash cut short counts as absent."""
    found: dict[tuple[str, str], Endpoint] = {}
    for line in text.splitlines():
        if endpoint := understood(Endpoint, line):
            found[endpoint.event, endpoint.id] = endpoint
    return [endpoint for endpoint in found.values() if endpoint.url]


def ways_of(notify: Notify | None, endpoints: Iterable[Endpoint], event: str) -> list[str]:
    """Return the ways in which dlctl itself tells of an event."""
    asked = notify.ways if notify is not None and event in notify.on else []
    return [*asked, *(each.way for each in endpoints if each.event == event)]
