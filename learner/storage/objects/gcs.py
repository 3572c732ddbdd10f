"""Buckets of Google Cloud Storage."""

from __future__ import annotations

import json
import re
from typing import Any

from obstore.exceptions import BaseError
from obstore.store import GCSStore

from learner.storage.objects.base import Place, Refusal, Refused
from learner.storage.objects.bucket import CLIENT, Bucket

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")


def connect(place: Place) -> Bucket:
    """Return the bucket of a place."""
    if not _BUCKET.fullmatch(place.container):
        raise Refused(Refusal.NO_CONTAINER, "no bucket has such a name")
    try:
        key = _key(place)
        store = GCSStore(place.container, service_account_key=json.dumps(key), **CLIENT)
    except (BaseError, ValueError):
        # The message may repeat a part of the key.
        wrong = "`password` is no service account's key: the whole JSON file that Google gives"
        raise Refused(Refusal.CREDENTIALS, wrong) from None
    return Bucket(place, store)


def _key(place: Place) -> dict[str, Any]:
    """Return the service account's key, which also names the server."""
    key = json.loads(place.settings["password"])
    if not isinstance(key, dict):
        raise ValueError
    if endpoint := place.settings.get("auth_url", "").rstrip("/"):
        key["gcs_base_url"] = endpoint
    return key
