"""The program of the shipped stores' scripts: `python -m learner.storage load|save|check KIND`.

Everything comes from the environment (`STORE_…`), so that no credential is an argument. Standard
error ends with one sentence on failure; exit code 75 means that another try may work.
"""

from __future__ import annotations

import math
import os
import socket
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from dlctl import contract
from dlctl.contract.ground.amounts import counted, format_bytes
from dlctl.contract.stores import EXIT_SUPERSEDED, EXIT_TRY_LATER, MOUNTED_STORES, PREFIX
from learner.errors import SiteFault, UserFault
from learner.storage.cache import Cache
from learner.storage.listing import known_listing, list_container, listed
from learner.storage.objects import Patient, Place, Refused, Unavailable, explained, open_store
from learner.storage.progress import Progress
from learner.storage.upload import Superseded, Upload, save

PATIENCE_VARIABLE = "DLCTL_STORE_PATIENCE_S"
PATIENCE_S = 300.0
CHECK_PATIENCE_S = 5.0
_OURS = ("ID", "CONTAINER", "DIR", "CACHE", "DATA", "SOURCE", "PROGRESS", "JOB_DIR", "QUICK_S",
         "MAY_BE_EMPTY", "CACHE_LIMIT")  # fmt: skip
"""Variables that no key of `connection` sets."""


def main(arguments: list[str], env: Mapping[str, str] = os.environ) -> int:
    """Run one verb; return the exit code."""
    verb, kind = arguments
    place = place_of(env)
    if place.access != "node":
        _forget_other_keys()
    try:
        return _VERBS[verb](kind, place, env)
    except (Refused, Unavailable) as error:
        fault: UserFault = explained(error, place)
    except UserFault as error:
        fault = error
    except OSError as error:
        fault = _disk_fault(error, place)
    except Superseded:
        print("A later attempt stores its results: this one may not.", file=sys.stderr)
        return EXIT_SUPERSEDED
    print(fault, file=sys.stderr)
    return EXIT_TRY_LATER if isinstance(fault, SiteFault) else 1


def _forget_other_keys() -> None:
    """Remove what obstore would add to the manifest's key, such as another key's session token."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_", "GOOGLE_"))]:
        del os.environ[name]


def _disk_fault(error: OSError, place: Place) -> SiteFault:
    """Return the sentence of a file that can't be read or written here: a store's errors differ."""
    where = f" {str(error.filename)!r}" if error.filename else ""
    return SiteFault(
        f"The files of data store {place.id!r} can't be moved on {socket.gethostname()}:{where} "
        f"{error.strerror or error}.",
        hint="Check the space, the quota and the permissions below the site's root, and what the "
        "cache holds: dlctl stores cache --site SITE",
    )


def place_of(env: Mapping[str, str]) -> Place:
    """Return the container that the environment names: `NAME`, or `NAME/PREFIX`."""
    settings = {
        name.removeprefix(PREFIX).lower(): value
        for name, value in env.items()
        if name.startswith(PREFIX) and name.removeprefix(PREFIX) not in _OURS
    }
    container, _, prefix = env[f"{PREFIX}CONTAINER"].partition("/")
    if "url" in settings or "host" in settings:
        container, prefix = env[f"{PREFIX}CONTAINER"], ""  # a path on that server
    prefix = f"{prefix.rstrip('/')}/" if prefix else ""
    return Place(env.get(f"{PREFIX}ID", "store"), container, prefix, settings)


def _opened(
    kind: str, place: Place, env: Mapping[str, str], progress: Progress, patience_s: float,
    listing_s: float = math.inf,
) -> Patient:  # fmt: skip
    wanted_s = env.get(PATIENCE_VARIABLE)
    patience_s = float(wanted_s) if wanted_s else patience_s
    return Patient(open_store(kind, place), patience_s, progress.notice, listing_s)


def _progress(place: Place, env: Mapping[str, str], what: str) -> Progress:
    path = env.get(f"{PREFIX}PROGRESS")
    return Progress(Path(path) if path else None, f"{what} of data store {place.id!r}")


def _load(kind: str, place: Place, env: Mapping[str, str]) -> int:
    """Fill the cache with the container's data, and make `STORE_DATA` a link to it."""
    began = time.monotonic()
    progress = _progress(place, env, "training data")
    limit = env.get(f"{PREFIX}CACHE_LIMIT")
    cache = Cache(Path(env[f"{PREFIX}CACHE"]), place, float(limit) if limit else math.inf)
    file = Path(env[f"{PREFIX}DIR"]) / "listing.json"
    listing = known_listing(file, place)
    opened = partial(_opened, kind, place, env, progress, PATIENCE_S)
    if listing is None:  # for all attempts of the training
        listing = list_container(opened(), place)
        contract.write_whole(file, contract.to_json(listing))
    tree, fetched_bytes = cache.fill(listing, opened, progress)
    with contract.whole_path(Path(env[f"{PREFIX}DATA"]), sync=False) as link:
        link.symlink_to(tree, target_is_directory=True)
    if not tree.exists():  # removed before there was a link to it
        return _load(kind, place, env)
    size = format_bytes(sum(item.size_bytes for item in listing.objects))
    progress.say(
        f"{counted(len(listing.objects), 'object')}, {size}, from "
        f"{place.container} at {place.endpoint}: {format_bytes(fetched_bytes)} fetched in "
        f"{time.monotonic() - began:.1f} s"
    )
    return 0


def _save(kind: str, place: Place, env: Mapping[str, str]) -> int:
    """Write what is in `STORE_SOURCE` below the training's id."""
    progress = _progress(place, env, "results")
    job_dir, attempt = Path(env[f"{PREFIX}JOB_DIR"]), int(env["DLCTL_ATTEMPT"])
    training_id = env["TRAINING_ID"]

    def check() -> None:
        if (job_dir / contract.submit_begin(attempt + 1)).exists():
            raise Superseded

    upload = Upload(
        Path(env[f"{PREFIX}SOURCE"]), f"{place.prefix}{training_id}/", training_id, attempt,
        env["TRAINING_STATE"],
    )  # fmt: skip
    save(upload, _opened(kind, place, env, progress, PATIENCE_S), progress, check)
    return 0


def _check(kind: str, place: Place, env: Mapping[str, str]) -> int:
    """Print what is in a container: credentials, container and network are right if this works."""
    if kind in MOUNTED_STORES:
        return _look_at(Path(place.settings["path"]), place)
    quick_s = env.get(f"{PREFIX}QUICK_S")
    store = _opened(kind, place, env, _progress(place, env, "check"), CHECK_PATIENCE_S,
                    float(quick_s) if quick_s else math.inf)  # fmt: skip
    may_be_empty = env.get(f"{PREFIX}MAY_BE_EMPTY")
    objects = listed(store, place) if may_be_empty else list_container(store, place).objects
    size = format_bytes(sum(item.size_bytes for item in objects))
    at_least = "at least " if store.is_cut else ""
    print(f"{at_least}{counted(len(objects), 'object')}, {size}")
    return 0


def _look_at(path: Path, place: Place) -> int:
    if not (path.exists() and os.access(path, os.R_OK)):
        what = "not readable" if path.exists() else "not there"
        raise UserFault(
            f"{str(path)!r} of data store {place.id!r} is {what} on {socket.gethostname()}.",
            hint="Correct `connection.path` and `container`, or have the nodes mount it",
        )
    print(f"{path} is there")
    return 0


_VERBS = {"load": _load, "save": _save, "check": _check}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
