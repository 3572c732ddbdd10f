"""Data stores, as both sides know them: names, the listing, and the words of their scripts."""

from __future__ import annotations

from dataclasses import dataclass, field

from dlctl.contract.records import SCHEMA_VERSION

MOUNTED_STORES = ("mount_volume", "host_mount")
"""A directory that the nodes see; `connection.path` names it. All other types have scripts."""
STORES = "stores"
"""In the job directory: a folder for each store with scripts, named by its place in the manifest.
"""
CACHE = "cache"
"""Below a site's root: training data of stores, which all trainings share."""
LOAD, STORE = "load", "store"
"""The two scripts of a store."""
EXIT_TRY_LATER = 75
"""Exit code of a script that failed for a reason of the infrastructure."""
EXIT_SUPERSEDED = 76
"""Exit code of a store script whose training has a later attempt, which stores its own results."""
PREFIX = "STORE_"
"""Beginning of the variables of a script: `STORE_PASSWORD` holds `connection.password`."""
MARKER = "_complete.json"
"""Name of the object that is written last, below a training's id: a `Stored`."""
STORING = "STORING"
"""The state of a marker while files are replaced that an earlier one has named."""


def store_dir(position: int) -> str:
    """Return the folder of a store in the job directory."""
    return f"{STORES}/{position}"


def store_script(position: int, name: str) -> str:
    """Return a script of a data store, `load` or `store`; a mounted store has none."""
    return f"{store_dir(position)}/{name}.sh"


def store_log(position: int, name: str) -> str:
    """Return what the last run of a script printed."""
    return f"{store_dir(position)}/{name}.log"


def listing_file(position: int) -> str:
    """Return the `Listing` of a store: the training's data, for all attempts.

    Written by the load script before the first fetch.
    """
    return f"{store_dir(position)}/listing.json"


def progress_file(position: int) -> str:
    """Return a sentence: how far a script is, or what it has done; written twice a second.

    Line 2 is the share that has moved, from 0 to 1; line 3, while the store fails, the next try.
    """
    return f"{store_dir(position)}/progress"


def store_data(position: int) -> str:
    """Return where a load script puts the data, or a link to it in the cache, for each attempt."""
    return f"{store_dir(position)}/data"


def storing_dir(attempt: int) -> str:
    """Return the links to all that an attempt stores, in its order in the store."""
    return f"attempts/{attempt}/storing"


@dataclass(frozen=True)
class ListedObject:
    """One object of a listing."""

    key: str
    size_bytes: int
    etag: str
    """The store's own name for this content."""
    parts: list[int] = field(default_factory=list)
    """The sizes in bytes of an object's parts, if the etag is the MD5 of the parts' MD5s."""


@dataclass(frozen=True)
class Listing:
    """The objects of a container when a training first asked: all attempts use exactly these."""

    endpoint: str
    """The server."""
    container: str
    prefix: str
    """The beginning of the keys that count."""
    listed_at: float
    objects: list[ListedObject]
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class CachedData:
    """The part of one container that the cache holds, as one listing has it."""

    endpoint: str
    container: str
    files: int
    size_bytes: int
    used_at: float
    """When a training last asked for it, in Unix seconds."""
    users: list[str]
    """The trainings that use it and have not ended."""


@dataclass(frozen=True)
class StoredFile:
    """One file of a training in a container."""

    name: str
    """Below the training's id."""
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Stored:
    """The marker of a training's files in a container: it names all of them."""

    training_id: str
    attempt: int
    state: str
    """How the attempt has ended: COMPLETED, HALTED, FAILED; or STORING."""
    files: list[StoredFile]
    schema_version: int = SCHEMA_VERSION
