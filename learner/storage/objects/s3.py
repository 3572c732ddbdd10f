"""Buckets of servers that speak S3."""

from __future__ import annotations

import re
from typing import Any

from obstore.store import S3Store

from learner.storage.objects.base import Place, Refusal, Refused
from learner.storage.objects.bucket import CLIENT, Bucket

US_STANDARD = "us-standard"
"""What IBM's stores call the region in whose name requests are signed as for us-east-1."""
_BUCKET = re.compile(r"[A-Za-z0-9._-]{1,255}")
_HOST_NAME = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")


def connect(place: Place) -> Bucket:
    """Return the bucket of a place."""
    if not _BUCKET.fullmatch(place.container):
        raise Refused(Refusal.NO_CONTAINER, "no bucket has such a name")
    settings = place.settings
    region = settings.get("region") or US_STANDARD
    endpoint = settings.get("auth_url", "").rstrip("/")
    hosted = not endpoint and _HOST_NAME.fullmatch(place.container) is not None
    config: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
    store = S3Store(
        place.container,
        access_key_id=settings["user_name"],
        secret_access_key=settings["password"],
        region="us-east-1" if region == US_STANDARD else region,
        virtual_hosted_style_request=hosted,  # no host name has a `_`, and few servers have one
        **config, **CLIENT,
    )  # fmt: skip
    return Bucket(place, store)
