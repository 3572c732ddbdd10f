"""The frozen listing of a container: what a training's data is, and which file each object is."""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from pathlib import Path

from dlctl import contract
from dlctl.contract.stores import ListedObject, Listing
from learner.errors import UserFault
from learner.storage.objects import ObjectStore, Place, Refusal, Refused

_LONGEST_BYTES = 255
"""What file systems allow for one name."""


def known_listing(file: Path, place: Place) -> Listing | None:
    """Return the listing of a training, if an attempt has written it.

    Raises:
        UserFault: it is another container's.
    """
    known = contract.read_record(Listing, file)
    if known and (known.container, known.prefix) != (place.container, place.prefix):
        raise UserFault(
            f"The listing {str(file)!r} is of the container {_of(known)!r}, but data store "
            f"{place.id!r} names {_of(place)!r}.",
            hint="All attempts of a training use the same data: submit a new training",
        )
    return known


def listed(store: ObjectStore, place: Place) -> list[ListedObject]:
    """Return every object below a place's prefix.

    Raises:
        Refused: what answers is no store.
    """
    found = list(store.list())
    if len(found) < 2 and not any(item.etag for item in found):
        expect_store(store, place)
    return found


def expect_store(store: ObjectStore, place: Place) -> None:
    """Check that a server does not have whatever it is asked for, as a proxy's log-in page does.

    Raises:
        Refused: it has.
    """
    try:
        found = store.stat(f"{place.prefix}{uuid.uuid4()}")
    except Refused as error:
        if error.why is Refusal.WEB_PAGE:
            raise
        return  # a store, whose user may list only
    if found is not None:
        raise Refused(Refusal.WEB_PAGE)


def list_container(store: ObjectStore, place: Place) -> Listing:
    """Return what a container holds now, by name.

    Raises:
        Refused: an object's name can't be a file's, or what answers is no store.
        UserFault: there is nothing.
    """
    found = sorted(listed(store, place), key=lambda item: item.key)
    folders = {folder for item in found for folder in _folders(item.key)}
    # An empty object of a folder's name only marks the folder.
    objects = [each for each in found if each.size_bytes or each.key not in folders]
    if not objects:
        raise UserFault(
            f"The container {_of(place)!r} of data store {place.id!r} at {place.endpoint} is "
            "empty.",
            hint="Upload the training data, then submit again",
        )
    check_names(objects, place)
    return Listing(place.endpoint, place.container, place.prefix, time.time(), objects)


def check_names(objects: list[ListedObject], place: Place) -> None:
    """Check that each object can be a file below DATA_DIR, beside all others.

    Raises:
        Refused: names the first object that can't.
    """
    files: set[str] = set()
    folders: set[str] = set()
    for item in objects:
        name = item.key.removeprefix(place.prefix)
        parts = name.split("/")
        if any(part in ("", ".", "..") for part in parts):
            raise Refused(Refusal.BAD_NAME, "its name leaves the folder, or is no path", item.key)
        if "\0" in name or any(len(part.encode()) > _LONGEST_BYTES for part in parts):
            why = f"no file may have a null character or a part of over {_LONGEST_BYTES} bytes"
            raise Refused(Refusal.BAD_NAME, why, item.key)
        files.add(name)
        folders.update(_folders(name))
    if both := sorted(files & folders):
        key = next(item.key for item in objects if item.key == place.prefix + both[0])
        raise Refused(Refusal.BAD_NAME, "other objects need a folder of this name", key)


def _of(place: Place | Listing) -> str:
    return f"{place.container}/{place.prefix}".rstrip("/")


def _folders(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


def digest(listing: Listing) -> str:
    """Return a digest of names and contents: equal listings are the same data."""
    rows = [[item.key, item.size_bytes, item.etag] for item in listing.objects]
    return hashlib.sha256(json.dumps([listing.prefix, rows]).encode()).hexdigest()[:32]
