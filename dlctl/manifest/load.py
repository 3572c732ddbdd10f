"""Read a manifest: YAML, overrides and credentials first, then the model and its checks."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection
from pathlib import Path

from pydantic import ValidationError

from dlctl.errors import ManifestError
from dlctl.manifest import secrets as credentials
from dlctl.manifest.checks import conflicts, store_problems, type_problems
from dlctl.manifest.errors import dotted, named, place, sentences
from dlctl.manifest.model import LATER, Manifest, Places
from dlctl.manifest.overrides import Overrides, apply, put
from dlctl.stores.types import secret_keys
from dlctl.yaml_source import Document, YamlError, load_bytes, load_file


def load_manifest(path: Path, overrides: Overrides | None = None) -> Manifest:
    """Return the manifest in a file, whose folder may have types of data stores of its own.

    Raises:
        ManifestError: with every problem, a line each.
    """
    if not path.exists():
        hint = "`dlctl init my-training` creates a folder with one; then name it, or go there"
        if (other := path.with_suffix(".yaml" if path.suffix == ".yml" else ".yml")).exists():
            hint = f"{other} does: name it"
        elif any(path.resolve().parent.glob("*.py")) and path.name == "manifest.yml":
            hint = f"`dlctl init {shlex.quote(str(path.parent))}` writes one for the program there"
        raise ManifestError(f"{path}: does not exist", hint=hint)
    return _from_yaml(lambda: load_file(path), overrides, path.resolve().parent)


def load_part(path: Path, without: Collection[str]) -> Manifest:
    """Return the manifest in a file that has other keys at its top, too.

    Args:
        without: The other keys.

    Raises:
        ManifestError: with every problem, a line each.
    """

    def load() -> Document:
        document = load_file(path)
        if isinstance(document.data, dict):
            document.data = {k: v for k, v in document.data.items() if k not in without}
        return document

    return _from_yaml(load, None, path.resolve().parent)


def parse_manifest(
    data: bytes, name: str, overrides: Overrides | None = None, *, stored: bool = False
) -> Manifest:
    """Return the manifest that `data` holds; messages call it `name`.

    Args:
        overrides: What the command line changes.
        stored: Whether the manifest was checked before, with types of stores in a folder that is
            not here.

    Raises:
        ManifestError: with every problem, a line each.
    """
    return _from_yaml(lambda: load_bytes(data, name), overrides, None if stored else Path())


def _from_yaml(
    load: Callable[[], Document], overrides: Overrides | None, folder: Path | None = None
) -> Manifest:
    """Return the manifest that `load` reads; without a folder no store's type is checked."""
    try:
        document = load()
    except YamlError as error:
        raise _error(error.problems) from error
    if not isinstance(document.data, dict):
        raise _error([f"{document.where(())}: keys with values are allowed, as in 'name: mine'"])
    problems = _lower_top_keys(document)
    _join_options(document)
    options = apply(document.data, overrides or Overrides(), problems)
    secrets = credentials.extract(document.data, lambda name: secret_keys(name, folder))
    for trail, what in credentials.stray(document.data):
        problems.append(f"{place(document, trail, options)}: {dotted(trail)}: {what}")
        put(document.data, trail, "(hidden)")  # another message about this value must not show it
    types = [
        f"{place(document, trail, options)}: {dotted(trail)}: {what}"
        for trail, what in (type_problems(document.data, folder) if folder else ())
    ]
    try:
        manifest = Manifest.model_validate(document.data)
    except ValidationError as error:
        # No chain: pydantic's error holds the input.
        problems += [*sentences(error, Manifest, document, options), *types]
        raise _error(problems) from None
    problems += types
    found = [*conflicts(manifest), *(store_problems(manifest, folder) if folder else ())]
    for trail, what in sorted(found, key=lambda each: document.order(each[0])):
        problems.append(f"{named(place(document, trail, options, key=True), trail)}: {what}")
    if problems:
        raise _error(problems)
    manifest._secrets = secrets
    manifest._places = Places(
        {key: place(document, tuple(key.split(".")), options) for key in LATER}
    )
    return manifest


def _lower_top_keys(document: Document) -> list[str]:
    """Accept `Learners` for `learners`, as FfDL's reader does."""
    problems, lowered = [], {}
    for key, value in document.data.items():
        lower = key.lower() if key.lower() in Manifest.model_fields else key
        if lower in lowered:
            where = document.where((key,), key=True)
            problems.append(
                f"{where}: {key}: appears twice, in different case; only one is allowed"
            )
            continue
        lowered[lower] = value
        for marks in (document.key_marks, document.value_marks):
            for trail in [trail for trail in marks if trail[:1] == (key,) and key != lower]:
                marks[(lower,) + trail[1:]] = marks[trail]
    document.data = lowered
    return problems


def _join_options(document: Document) -> None:
    """Join a folded command's lines of options, as FfDL's manifests have them, to the line before.

    YAML keeps the line break before a line that is indented more than the first. No shell command
    begins with a `-`, so that such a line belongs to the one before.
    """
    framework = document.data.get("framework")
    if ("framework", "command") in {
        (str(each[0]).lower(), *each[1:]) for each in document.folded if each
    } and isinstance(framework, dict):
        framework["command"] = re.sub(r"\n[ \t]+(?=-)", " ", framework["command"])


def _error(problems: list[str]) -> ManifestError:
    return ManifestError("\n".join(problems), problems=problems)
