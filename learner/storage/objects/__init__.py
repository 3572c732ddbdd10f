"""Object stores behind one Protocol of four calls: Swift, S3, Google's, Azure's, the web, SFTP.

Imports the contract and `learner.errors`. What passes through are a `Place` on the way in, and
objects and bytes on the way out. Each foreign error stops here: it becomes `Refused` (the user's
fault) or `Unavailable` (a fault of the infrastructure, worth another try). To add an
implementation, write its file and name it in `_MADE_BY`.
"""

from __future__ import annotations

import importlib
import socket
import sys

from learner.errors import SiteFault, UserFault
from learner.storage.objects.base import (
    Digests,
    Moved,
    ObjectStore,
    Place,
    Refusal,
    Refused,
    Sink,
    Unavailable,
    content_of,
    digests_of,
)
from learner.storage.objects.faults import explained
from learner.storage.objects.patience import Patient

__all__ = ["Digests", "Moved", "ObjectStore", "Patient", "Place", "Refusal", "Refused",
           "Sink", "Unavailable", "content_of", "digests_of", "explained",
           "open_store"]  # fmt: skip

_MADE_BY = {"s3": "bucket:s3", "gcs": "bucket:gcs", "azure": "bucket:azure",
            "swift": "swift:Swift", "http": "web:Web", "sftp": "sftp:Sftp"}  # fmt: skip
"""Module of each implementation, and what makes it of a place there."""


def open_store(kind: str, place: Place) -> ObjectStore:
    """Return the store of an implementation, which asks its server nothing yet.

    Raises:
        UserFault: there is no such implementation.
        SiteFault: its package is missing on this machine.
    """
    if kind not in _MADE_BY:
        raise UserFault(
            f"There is no implementation {kind!r} of object stores.",
            hint=f"`uses` in the type's store.yml names one of: {', '.join(_MADE_BY)}",
        )
    try:
        module, _, maker = _MADE_BY[kind].partition(":")
        made_by = getattr(importlib.import_module(f"learner.storage.objects.{module}"), maker)
        store: ObjectStore = made_by(place)
    except ModuleNotFoundError as error:
        raise SiteFault(
            f"The package {error.name} is missing on {socket.gethostname()}, without which no "
            f"{kind} store can be reached.",
            hint=f"Install it there: {sys.executable} -m pip install {error.name}",
        ) from error
    return store
