"""Find types of data stores, and read what each needs: `templates/stores/<type>/store.yml`.

A folder of the training wins over the user's configuration, and that over the package.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from dlctl.contract.stores import LOAD, MOUNTED_STORES, STORE
from dlctl.errors import ManifestError, in_words
from dlctl.package_data import data_path
from dlctl.yaml_source import Document, Trail, YamlError, load_file, plain

FOLDER = "templates/stores"
SCHEMA = "store.yml"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_KEY = re.compile(r"[a-z][a-z0-9_]*")


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Key(_Settings):
    """One key of a type's `connection`."""

    description: str = ""
    required: bool = False
    without: str = ""
    """Another key, beside which a required one may be left out."""
    choices: list[str] = []
    """The values that are allowed; empty: any."""
    secret: bool = False
    """Whether the value is a credential, whatever the key's name looks like."""
    default: str | None = None


class Schema(_Settings):
    """The content of store.yml."""

    description: str = ""
    like: str | None = None
    """Another type, from which comes all that this one does not have."""
    uses: str = ""
    """What the shipped scripts are told: an implementation in `learner.storage.objects`."""
    needs: list[str] = []
    """Python packages that the scripts need."""
    connection: dict[str, Key] = {}


@dataclass(frozen=True)
class StoreType:
    """A type of data store."""

    name: str
    folder: Path
    schema: Schema
    scripts: Mapping[str, Path]
    """The templates by name: `load`, `store`; a mounted type has none."""

    @property
    def uses(self) -> str:
        """The implementation."""
        return self.schema.uses

    @property
    def connection(self) -> dict[str, Key]:
        """The keys of `connection`."""
        return self.schema.connection

    @property
    def is_mounted(self) -> bool:
        """Return whether its data is used in place."""
        return self.name in MOUNTED_STORES


def search_path(folder: Path | None) -> list[Path]:
    """Return the folders with types, the first of which wins."""
    config = os.environ.get("XDG_CONFIG_HOME", "")
    own = Path(config) if config.startswith("/") else Path.home() / ".config"
    found = [own / "dlctl" / FOLDER, data_path("templates") / "stores"]
    return found if folder is None else [folder / FOLDER, *found]


def type_names(folder: Path | None = None) -> list[str]:
    """Return the names of all types, in order."""
    found = {
        path.parent.name for place in search_path(folder) for path in place.glob(f"*/{SCHEMA}")
    }
    return sorted(name for name in found if _NAME.fullmatch(name))


def list_types(folder: Path | None = None) -> tuple[list[StoreType], list[ManifestError]]:
    """Return all types by name, and what is wrong with the rest."""
    found, wrong = [], []
    for name in type_names(folder):
        try:
            found.append(find_type(name, folder))
        except ManifestError as error:
            wrong.append(error)
    return found, wrong


def find_type(name: str, folder: Path | None = None, seen: tuple[str, ...] = ()) -> StoreType:
    """Return a type.

    Args:
        name: The manifest's `data_stores[].type`.
        folder: The training's folder, which may have types of its own.
        seen: The types that are like this one.

    Raises:
        ManifestError: there is no such type, or its store.yml is wrong.
    """
    places = [place / name for place in search_path(folder) if _NAME.fullmatch(name)]
    home = next((place for place in places if (place / SCHEMA).is_file()), None)
    if home is None:
        names = type_names(folder)
        near = difflib.get_close_matches(name.lower()[:80], names, 1, 0.55)
        meant = f"; did you mean {near[0]!r}?" if near else "."
        raise ManifestError(f"{name!r} is unknown{meant} Allowed: {', '.join(names)}")
    schema = _read(home / SCHEMA)
    scripts = {
        each: home / f"{each}.sh.j2" for each in (LOAD, STORE) if (home / f"{each}.sh.j2").is_file()
    }
    if schema.like is None:
        return StoreType(name, home, schema, scripts)
    if schema.like in seen:
        raise ManifestError(
            f"{home / SCHEMA}: like: {schema.like} is like itself; name another type"
        )
    base = find_type(schema.like, folder, (*seen, schema.like))
    own = {
        k: getattr(schema, k) for k in schema.model_fields_set if k not in ("like", "connection")
    }
    merged = base.schema.model_copy(
        update={**own, "connection": {**base.connection, **schema.connection}}
    )
    return StoreType(name, home, merged, {**base.scripts, **scripts})


def _read(path: Path) -> Schema:
    try:
        document = load_file(path, str(path))
        schema = Schema.model_validate(_with_texts(plain(document.data or {})))
    except YamlError as error:
        raise ManifestError("\n".join(error.problems), problems=error.problems) from error
    except ValidationError as error:
        problems = [_sentence(document, each) for each in error.errors(include_input=False)]
        raise ManifestError("\n".join(problems), problems=problems) from None
    if wrong := [key for key in schema.connection if not _KEY.fullmatch(key)]:
        allowed = "small letters, digits and _ are allowed"
        raise ManifestError(f"{path}: connection.{wrong[0]}: {allowed}")
    return schema


def _sentence(document: Document, fault: ErrorDetails) -> str:
    trail: Trail = fault["loc"]
    what = "is missing" if fault["type"] == "missing" else in_words(fault, "this value")
    if fault["type"] == "extra_forbidden":
        known = Key if trail[0] == "connection" else Schema
        what = f"unknown key; Allowed: {', '.join(known.model_fields)}"
    return f"{document.where(trail, key=True)}: {'.'.join(map(str, trail))}: {what}"


def _with_texts(data: Any) -> Any:
    """Accept `default: 22` for text, as it was written."""
    for key in data.get("connection", {}).values() if isinstance(data, dict) else ():
        if isinstance(key, dict) and isinstance(key.get("default"), (int, float)):
            key["default"] = str(key["default"])
    return data


def secret_keys(name: str, folder: Path | None) -> frozenset[str]:
    """Return the keys of a type's `connection` that hold credentials; none of an unknown type."""
    try:
        found = find_type(name, folder)
    except ManifestError:
        return frozenset()
    return frozenset(key for key, settings in found.connection.items() if settings.secret)
