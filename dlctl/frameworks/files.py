"""Find and read the folders of frameworks: `templates/frameworks/<name>/`.

The submitted folder's own come first, then the user's in `$XDG_CONFIG_HOME/dlctl`, then those that
ship with dlctl. A framework is a folder with framework.yml and train.sh.j2: no name of one is in
this code, except `custom`, which serves a command of any other name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

from pydantic import ValidationError

from dlctl.errors import ManifestError
from dlctl.frameworks.model import FrameworkFolder, FrameworkSettings
from dlctl.manifest.errors import sentences
from dlctl.manifest.model import Manifest
from dlctl.package_data import data_path
from dlctl.sites.model import xdg_directory
from dlctl.yaml_source import YamlError, load_file

CUSTOM = "custom"
FOLDER = "templates/frameworks"
SETTINGS, TEMPLATE = "framework.yml", "train.sh.j2"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def list_frameworks(
    folder: Path | None = None,
) -> tuple[list[FrameworkFolder], list[ManifestError]]:
    """Return every framework by name, and what is wrong with the rest.

    Args:
        folder: the folder with the manifest, if there is one; it hides others of the same name.
    """
    known, wrong = [], []
    for name, found in sorted(_found(folder).items()):
        try:
            known.append(_read(name, *found))
        except ManifestError as error:
            wrong.append(error)
    return known, wrong


def find_framework(name: str, folder: Path | None = None) -> FrameworkFolder | None:
    """Return the framework of this name, in any case of letters; None if there is none.

    Raises:
        ManifestError: its folder is wrong, with every fault in it.
    """
    found = _found(folder)
    place = found.get(name.lower())
    if place is None:
        return None
    framework = _read(name.lower(), *place)
    other = framework.settings.same_as
    if other is None:
        return framework
    if other not in found:
        raise ManifestError(f"{framework.path / SETTINGS}: same_as: there is no {other!r}")
    return _read(other, *found[other])


def framework_of(manifest: Manifest, folder: Path | None = None) -> FrameworkFolder:
    """Return the framework of a manifest; a command of an unknown name is `custom`.

    Raises:
        ManifestError: `job` is set, and the framework is unknown, or takes no such job.
    """
    section, places = manifest.framework, manifest._places.by_key
    framework = find_framework(section.name, folder)
    if framework is None and section.command is not None:
        framework = find_framework(CUSTOM, folder)
        assert framework is not None
    if framework is None:
        raise ManifestError(
            _placed(places, "framework.name", no_such(section.name, folder)),
            hint="`dlctl frameworks list` describes them; with framework.command any name is "
            "allowed, and docs/frameworks.md says how to add one",
        )
    if section.job is not None and (wrong := _wrong_job(framework, section.job)):
        raise ManifestError(_placed(places, "framework.job", wrong))
    return framework


def _placed(places: Mapping[str, str], key: str, what: str) -> str:
    return f"{places.get(key, 'manifest')}: {key}: {what}"


def no_such(name: str, folder: Path | None = None) -> str:
    """Return the sentence about a framework that does not exist, with the closest that does."""
    known = sorted(_found(folder))
    close = get_close_matches(name.lower(), known, n=1)
    meant = f"did you mean {close[0]!r}? There are" if close else "there are"
    return f"there is no framework {name!r}; {meant} {', '.join(known)}"


def _wrong_job(framework: FrameworkFolder, job: str) -> str:
    wanted = framework.settings.job
    if wanted is None:
        return f"{framework.name} takes none; say with framework.command how your program is run"
    if job.endswith(wanted.suffix):
        return ""
    return (
        f"{job!r} does not end with {wanted.suffix}; for {framework.name} a path such as "
        f"{wanted.example!r} is allowed"
    )


def modules() -> dict[str, Path]:
    """Return the frameworks' modules, which belong to the runtime, by their paths there.

    Those of the submitted folder travel with it.
    """
    return {
        f"{FOLDER}/{path.parent.name}/{path.name}": path
        for _, root in _roots()
        for path in root.glob("*/*.py")
    }


def _roots() -> list[tuple[str, Path]]:
    user = xdg_directory("XDG_CONFIG_HOME", ".config") / "dlctl" / FOLDER
    return [("package", data_path(FOLDER)), ("user", user)]


def _found(folder: Path | None) -> dict[str, tuple[str, Path]]:
    roots = _roots()
    if folder is not None:
        roots.append(("folder", folder / FOLDER))
    return {
        path.parent.name: (place, path.parent)
        for place, root in roots
        for path in sorted(root.glob(f"*/{SETTINGS}"))
        if _NAME.fullmatch(path.parent.name)
    }


def _read(name: str, place: str, path: Path) -> FrameworkFolder:
    file = path / SETTINGS
    try:
        document = load_file(file, str(file))
    except YamlError as error:
        raise ManifestError(str(error), problems=error.problems) from error
    try:
        settings = FrameworkSettings.model_validate(document.data)
    except ValidationError as error:
        problems = sentences(error, FrameworkSettings, document, {})
        raise ManifestError("\n".join(problems), problems=problems) from None
    module = settings.loop and settings.loop.module
    if module and not (path / module).is_file():
        raise ManifestError(f"{file}: loop: module: there is no {module!r} beside it")
    if settings.same_as is None and not (path / TEMPLATE).is_file():
        raise ManifestError(f"{path / TEMPLATE}: does not exist; it says how a learner is run")
    return FrameworkFolder(name, place, path, settings)


__all__ = ["CUSTOM", "find_framework", "framework_of", "list_frameworks", "modules", "no_such"]
