"""Containers of Azure's blob storage."""

from __future__ import annotations

import re
from typing import Any

from obstore.exceptions import BaseError
from obstore.store import AzureStore

from learner.storage.objects.base import Place, Refusal, Refused
from learner.storage.objects.bucket import CLIENT, Bucket

_CONTAINER = re.compile(r"[a-z0-9]([a-z0-9-]{1,61}[a-z0-9])|\$root")


def connect(place: Place) -> Bucket:
    """Return the container of a place."""
    if not _CONTAINER.fullmatch(place.container):
        raise Refused(Refusal.NO_CONTAINER, "no container has such a name")
    settings = place.settings
    endpoint = settings.get("auth_url", "").rstrip("/")
    config: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
    try:
        store = AzureStore(
            place.container, account_name=settings["user_name"], account_key=settings["password"],
            **config, **CLIENT,
        )  # fmt: skip
    except BaseError:
        # Its message may repeat a part of the key.
        raise Refused(Refusal.CREDENTIALS, "`password` is no account key") from None
    return Bucket(place, store)
