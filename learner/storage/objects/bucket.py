"""Buckets of S3, Google and Azure by obstore.

Its own retries are off: `Patient` repeats, and tells what it waits for.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import obstore
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from dlctl.contract.stores import ListedObject
from learner.storage.objects.answers import BARE, MISSING, translated
from learner.storage.objects.base import (
    CHUNK_BYTES,
    OPAQUE_HINT,
    PART_BYTES,
    TIMEOUT_S,
    Digests,
    Moved,
    Place,
    Reading,
    Refusal,
    Refused,
    Sink,
    Unavailable,
)

_MEBIBYTE = 1 << 20
_AT_ONCE = 4
_AHEAD_BYTES = (_AT_ONCE + 1) * PART_BYTES
"""How much of a file obstore may have read that the server has not taken: a part is filled while
others are on their way."""
_LEAST_PIECE_BYTES, _MOST_PIECE_BYTES = 1 << 16, 1 << 19
_PIECE_S = 0.5
"""How long a piece should take that is counted as a whole: small pieces slow a fast link, and large
ones don't fit a processor's cache."""
CLIENT: dict[str, Any] = {
    "client_options": {"allow_http": True, "timeout": timedelta(seconds=4 * TIMEOUT_S),
                       "connect_timeout": timedelta(seconds=TIMEOUT_S / 4)},
    "retry_config": {"max_retries": 0},
}  # fmt: skip
"""What each of obstore's stores is told."""


class Bucket:
    """A bucket; see `ObjectStore`."""

    def __init__(self, place: Place, store: Any) -> None:
        self._place, self._store, self._piece_bytes = place, store, _LEAST_PIECE_BYTES

    def list(self) -> Iterator[ListedObject]:
        """Yield every object below the prefix, without those that only mark a folder."""
        empty: dict[str, Any] = {}
        try:
            for rows in obstore.list(self._store, self._place.prefix or None):
                for row in rows:
                    if row["size"]:
                        yield _object(row)
                    else:
                        empty[row["path"]] = row
            for folder in {path.rpartition("/")[0] for path in empty}:
                # obstore drops a name's last slash, but keeps folders and files of a level apart.
                level = obstore.list_with_delimiter(self._store, folder or None)["objects"]
                for path in empty.keys() & {row["path"] for row in level}:
                    yield _object(empty.pop(path))
        except (BaseError, OSError) as error:
            self._fail(error)

    def read(self, item: ListedObject, start: int, into: Sink) -> None:
        """Fill a sink with a range of an object."""
        wanted = (start + into.done_bytes, start + len(into.room))
        try:
            answer = obstore.get(
                self._store, item.key,
                options={"range": wanted, "if_match": f'"{item.etag}"'},
            )  # fmt: skip
            if answer.range != wanted:
                raise Refused(Refusal.CHANGED, key=item.key)
            began, before = time.monotonic(), into.done_bytes
            for piece in answer.stream(self._piece_bytes):
                into.put(piece)
            pace = (into.done_bytes - before) / (time.monotonic() - began)
            wanted_bytes = int(pace * _PIECE_S)
            self._piece_bytes = min(_MOST_PIECE_BYTES, max(_LEAST_PIECE_BYTES, wanted_bytes))
        except (BaseError, OSError) as error:
            self._fail(error, item.key)

    def write(self, key: str, source: Path, moved: Moved) -> Digests:
        """Write a file, a large one in parts; compare what the server has with what was read."""
        reading = Reading(source)
        try:
            done = obstore.put(
                self._store, key, _counted(reading, moved), use_multipart=reading.is_large,
                chunk_size=reading.part_bytes, max_concurrency=_AT_ONCE,
            )  # fmt: skip
        except (BaseError, OSError) as error:
            self._fail(error, key)
        known = reading.digests
        moved(min(known.size_bytes, _AHEAD_BYTES))
        etag = (done["e_tag"] or "").strip('"')
        if not self._place.etags_are_md5:
            self._read_back(ListedObject(key, known.size_bytes, etag), known)
        elif etag not in known.etags:
            raise Unavailable(f"what it has of {key!r} is not what was sent{OPAQUE_HINT}")
        return known

    def _read_back(self, item: ListedObject, known: Digests) -> None:
        sha256 = hashlib.sha256()
        room = memoryview(bytearray(CHUNK_BYTES))
        for start in range(0, item.size_bytes, CHUNK_BYTES):
            into = Sink(room[: item.size_bytes - start])
            self.read(item, start, into)
            sha256.update(into.room)
        if sha256.hexdigest() != known.sha256:
            raise Unavailable(f"what it has of {item.key!r} is not what was sent")

    def stat(self, key: str) -> ListedObject | None:
        """Return an object without its content."""
        try:
            return _object(obstore.head(self._store, key))
        except MISSING:
            return None
        except (BaseError, OSError) as error:
            self._fail(error, key)

    def _fail(self, error: Exception, key: str = "") -> NoReturn:
        """Raise what an error of obstore means; an answer to HEAD has no body that would say so."""
        found = translated(error, self._place, key)
        if key and isinstance(found, Refused) and found.detail in BARE:
            try:
                next(
                    iter(obstore.list(self._store, self._place.prefix or None, chunk_size=1)), None
                )
                found = Refused(Refusal.FORBIDDEN, found.detail, key)
            except (BaseError, OSError) as listed:
                found = translated(listed, self._place, key)
        raise found from error


def _counted(reading: Reading, moved: Moved) -> Iterator[bytes]:
    """Yield a file's blocks; note those that can no longer be on their way."""
    ahead_bytes = 0
    for block in reading:
        yield block
        if ahead_bytes < _AHEAD_BYTES:
            ahead_bytes += len(block)
        else:
            moved(len(block))


def _object(row: Any) -> ListedObject:
    etag = (row["e_tag"] or "").strip('"')
    return ListedObject(row["path"], row["size"], etag, guessed_parts(row["size"], etag))


def guessed_parts(size_bytes: int, etag: str) -> list[int]:
    """Return the sizes of the parts in which an object was written, if only one size can be.

    The etag of an object in parts ends in their number. All parts but the last are of one size,
    which programs choose in whole MiB.
    """
    count = int(etag.rpartition("-")[2]) if re.fullmatch(r"[0-9a-f]{32}-\d{1,5}", etag) else 0
    if count == 0:
        return []
    if count == 1:
        return [size_bytes]
    least = -(-size_bytes // count)  # bytes of a part, rounded up; and to whole MiB
    part = -(-least // _MEBIBYTE) * _MEBIBYTE
    is_certain = -(-size_bytes // (part + _MEBIBYTE)) != count
    if -(-size_bytes // part) != count or not is_certain:
        return []
    return [*[part] * (count - 1), size_bytes - part * (count - 1)]


US_STANDARD = "us-standard"
"""What IBM's stores call the region in whose name requests are signed as for us-east-1."""
_S3_BUCKET = re.compile(r"[A-Za-z0-9._-]{1,255}")
_HOST_NAME = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")


def s3(place: Place) -> Bucket:
    """Return the bucket of a server that speaks S3."""
    if not _S3_BUCKET.fullmatch(place.container):
        raise Refused(Refusal.NO_CONTAINER, "no bucket has such a name")
    settings = place.settings
    region = settings.get("region") or US_STANDARD
    endpoint = settings.get("auth_url", "").rstrip("/")
    hosted = not endpoint and _HOST_NAME.fullmatch(place.container) is not None
    config: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
    if place.access == "key":
        config |= {"access_key_id": settings["user_name"],
                   "secret_access_key": settings["password"]}  # fmt: skip
    if place.access == "key" and settings.get("session_token"):
        config["session_token"] = settings["session_token"]
    store = S3Store(
        place.container,
        skip_signature=place.access == "public",
        region="us-east-1" if region == US_STANDARD else region,
        virtual_hosted_style_request=hosted,  # no host name has a `_`, and few servers have one
        **config, **CLIENT,
    )  # fmt: skip
    return Bucket(place, store)


_GOOGLE_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")


def gcs(place: Place) -> Bucket:
    """Return the bucket of Google Cloud Storage."""
    if not _GOOGLE_BUCKET.fullmatch(place.container):
        raise Refused(Refusal.NO_CONTAINER, "no bucket has such a name")
    try:
        config: dict[str, Any] = {}
        if place.access == "key":
            config["service_account_key"] = json.dumps(_key(place))
        if endpoint := place.settings.get("auth_url", "").rstrip("/"):
            config["base_url"] = endpoint
        store = GCSStore(
            place.container, skip_signature=place.access == "public", **config, **CLIENT
        )
    except (BaseError, ValueError):
        # The message may repeat a part of the key.
        wrong = "`password` is no service account's key: the whole JSON file that Google gives"
        raise Refused(Refusal.CREDENTIALS, wrong) from None
    return Bucket(place, store)


def _key(place: Place) -> dict[str, Any]:
    """Return the service account's key."""
    key = json.loads(place.settings["password"])
    if not isinstance(key, dict):
        raise ValueError
    return key


_CONTAINER = re.compile(r"[a-z0-9]([a-z0-9-]{1,61}[a-z0-9])|\$root")


def azure(place: Place) -> Bucket:
    """Return the container of Azure's blob storage."""
    if not _CONTAINER.fullmatch(place.container):
        raise Refused(Refusal.NO_CONTAINER, "no container has such a name")
    settings = place.settings
    endpoint = settings.get("auth_url", "").rstrip("/")
    config: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
    if place.access == "key":  # the account's, or a signature for some of what it may do
        is_signature = "sig=" in settings["password"]
        config["sas_key" if is_signature else "account_key"] = settings["password"]
    try:
        store = AzureStore(
            place.container, account_name=settings["user_name"],
            skip_signature=place.access == "public", **config, **CLIENT,
        )  # fmt: skip
    except BaseError:
        # Its message may repeat a part of the key.
        raise Refused(Refusal.CREDENTIALS, "`password` is no account key") from None
    return Bucket(place, store)
