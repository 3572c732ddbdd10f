"""Check data stores against their types: the keys of `connection`, and what is kept there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dlctl.contract.stores import LOAD, STORE
from dlctl.errors import ManifestError
from dlctl.manifest.errors import unknown_key
from dlctl.manifest.model import Manifest
from dlctl.manifest.parts import DataStoreSection, Reference
from dlctl.stores.types import Key, StoreType, find_type
from dlctl.yaml_source import Trail

_Problem = tuple[Trail, str]


def type_problems(data: Any, folder: Path) -> list[_Problem]:
    """Return which types of stores a raw manifest names that there are none of."""
    stores = data.get("data_stores") if isinstance(data, dict) else None
    found: list[_Problem] = []
    for position, store in enumerate(stores if isinstance(stores, list) else ()):
        name = store.get("type") if isinstance(store, dict) else None
        if isinstance(name, str) and name:
            try:
                find_type(name, folder)
            except ManifestError as error:
                trail: Trail = ("data_stores", position, "type")
                found += [(trail, problem) for problem in error.problems]
    return found


def store_problems(manifest: Manifest, folder: Path) -> list[_Problem]:
    """Return what is wrong with the stores: the place of each problem, and a sentence."""
    found: list[_Problem] = []
    for position, store in enumerate(manifest.data_stores):
        trail: Trail = ("data_stores", position)
        try:
            known = find_type(store.type, folder)
        except ManifestError:
            continue  # `type_problems` tells
        if not known.is_mounted:
            found += [((*trail, *at), what) for at, what in _of_one(store, known)]
        elif store.training_results and store.training_results.checkpoints:
            at = (*trail, "training_results", "checkpoints")
            found.append((at, f"a {store.type} takes no checkpoints"))
    return found


def _of_one(store: DataStoreSection, known: StoreType) -> list[_Problem]:
    found: list[_Problem] = []
    for key, settings in known.connection.items():
        value = store.connection.get(key)
        if settings.required and (value is None or value == ""):
            found.append((("connection",), f"{key} is missing{_what(settings)}"))
    for key, value in store.connection.items():
        if key not in known.connection:
            found.append((("connection", key), unknown_key(key, list(known.connection))))
        elif isinstance(value, str) and any(c in value for c in "\r\n"):
            found.append((("connection", key), "one line is allowed"))
        elif key.endswith("url") and isinstance(value, Reference):
            what = "holds a credential, or refers to one; the address alone is allowed"
            found.append((("connection", key), what))
        elif key.endswith("url") and not str(value).startswith(("http://", "https://")):
            found.append((("connection", key), "is no URL; http://… or https://… is allowed"))
        elif key.endswith("url") and set(str(value)) & set("?#"):
            found.append((("connection", key), "must end before `?` or `#`"))
    for name, place in ((LOAD, "training_data"), (STORE, "training_results")):
        if getattr(store, place) is not None and name not in known.scripts:
            what = "gives no training data" if name == LOAD else "takes no results"
            found.append(((place,), f"a store of the type {store.type} {what}"))
    return found


def _what(settings: Key) -> str:
    return f" ({settings.description.rstrip('.')})" if settings.description else ""
