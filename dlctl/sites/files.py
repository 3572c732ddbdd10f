"""Find, read, write and remove site files; an error names file, line, key and allowed values.

The user's own are `$XDG_CONFIG_HOME/dlctl/sites/NAME.yml` and come before those that are shipped in
`site_configs/`, which are never changed. A shipped `*-example.yml` is there to be copied.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from dlctl.contract import write_whole
from dlctl.contract.ground.safe_text import has_credential
from dlctl.errors import ELSEWHERE, SiteError, in_words
from dlctl.package_data import data_path
from dlctl.sites.model import (
    NAME_PATTERN,
    NAME_RULE,
    EnvironmentSettings,
    Failures,
    LauncherSettings,
    Partition,
    SchedulerSettings,
    Site,
    TransportSettings,
    xdg_directory,
)
from dlctl.units import natural
from dlctl.yaml_source import Document, Trail, YamlError, load_bytes, load_file

__all__ = [
    "EnvironmentSettings", "LauncherSettings", "Partition", "SchedulerSettings", "Site", "SiteFile",
    "TransportSettings", "find_site", "list_sites", "load_site", "parse_site", "remove_site",
    "save_site", "set_python",
]  # fmt: skip

_MODELS: dict[str, type[BaseModel]] = {
    "": Site, "transport": TransportSettings, "scheduler": SchedulerSettings,
    "launcher": LauncherSettings, "environment": EnvironmentSettings, "partitions": Partition,
    "failures": Failures,
}  # fmt: skip


@dataclass(frozen=True)
class SiteFile:
    """The file of a site."""

    name: str
    path: Path
    shipped: bool
    """Shipped with dlctl: never changed, never removed."""

    @property
    def example(self) -> bool:
        """Return whether the site is an example, which is only there to be copied."""
        return self.shipped and self.name.endswith("-example")

    def plain(self) -> dict[str, str]:
        """Return it as JSON has it."""
        kind = "example" if self.example else "shipped" if self.shipped else "yours"
        return {"name": self.name, "kind": kind, "file": str(self.path)}


def user_directory() -> Path:
    """Return the folder of the user's own site files."""
    return xdg_directory("XDG_CONFIG_HOME", ".config") / "dlctl" / "sites"


def list_sites() -> list[SiteFile]:
    """Return every site file, by name; the user's own hide shipped ones of the same name."""
    found: dict[str, SiteFile] = {}
    for folder, shipped in ((data_path("site_configs"), True), (user_directory(), False)):
        for path in folder.glob("*.yml"):
            if NAME_PATTERN.fullmatch(path.stem) and not path.is_dir():
                found[path.stem] = SiteFile(path.stem, path, shipped)
    return sorted(found.values(), key=lambda site: natural(site.name))


def find_site(name: str) -> SiteFile:
    """Return the site's file.

    Raises:
        SiteError: there is no such site; names the closest.
    """
    check_name(name)
    sites = {site.name: site for site in list_sites()}
    if name in sites:
        return sites[name]
    close = get_close_matches(name, sites, n=1)
    raise SiteError(
        f"there is no site {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""),
        hint=f"the sites are {', '.join(sites)}; `dlctl sites add {name} user@host` adds one",
    )


def load_site(name: str) -> Site:
    """Return a validated site.

    Raises:
        SiteError: there is no such site, or its file is wrong (all errors at once).
    """
    file = find_site(name)
    try:
        return _site(load_file(file.path, str(file.path)), name)
    except YamlError as error:
        raise _wrong(name, error.problems) from error


def site_environments(framework: str) -> list[dict[str, Any]]:
    """Return the environments of the user's sites for a framework; wrong files are left out."""
    found = []
    for file in list_sites():
        with contextlib.suppress(SiteError):
            found += [
                {"site": file.name, "environment": name, "versions": versions}
                for name, settings in load_site(file.name).environments.items()
                for each, versions in settings.frameworks.items()
                if each.lower() == framework.lower() and not file.example
            ]
    return found


def parse_site(name: str, text: str, shown: str = "") -> Site:
    """Return the site that a text describes.

    Raises:
        SiteError: the text is wrong.
    """
    check_name(name)
    try:
        return _site(load_bytes(text.encode(), shown or f"{name}.yml"), name)
    except YamlError as error:
        raise _wrong(name, error.problems) from error


def save_site(name: str, text: str, *, force: bool = False) -> Path:
    """Validate a site file and write it to the user's folder.

    Raises:
        SiteError: the text is wrong, or the file exists and `force` is not set.
    """
    parse_site(name, text)
    path = user_directory() / f"{name}.yml"
    if path.exists() and not force:
        raise SiteError(f"the site {name} already exists: {path}", hint="--force replaces it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except OSError as error:
        raise SiteError(f"{path} can't be written: {error.strerror}", hint=ELSEWHERE) from error
    return path


def remove_site(name: str, *, dry_run: bool = False) -> Path:
    """Remove the user's own site file; everything on the site itself stays.

    Raises:
        SiteError: there is no such site, or it is shipped with dlctl.
    """
    file = find_site(name)
    if file.shipped:
        raise SiteError(
            f"the site {name} is part of dlctl and can't be removed",
            hint=f"a file of your own in {user_directory()} takes precedence over it",
        )
    if not dry_run:
        file.path.unlink()
    return file.path


def set_python(name: str, python: str) -> Path:
    """Write `environment.python` into the site's file, leaving the rest of it as it is.

    A shipped file is copied to the user's own first.
    """
    file, before = find_site(name), load_site(name)
    changed = _with_python(file.path.read_text(encoding="utf-8"), python)
    environment = before.environment.model_copy(update={"python": python})
    try:
        unchanged = parse_site(name, changed) == before.model_copy(
            update={"environment": environment}
        )
    except SiteError:
        unchanged = False
    if not unchanged:
        raise SiteError(
            f"{file.path}: environment.python could not be changed without changing the rest",
            hint=f"write `python: {python}` below `environment:` yourself",
        )
    return save_site(name, changed, force=True)


def _with_python(text: str, python: str) -> str:
    marks = load_bytes(text.encode(), "site")
    lines = text.split("\n")
    row, column = marks.key_marks.get(("environment", "python"), (0, 0))
    if row:
        indent = lines[row - 1][: column - 1]
        # An old comment would be about the old value.
        lines[row - 1] = f"{indent}python: {yaml_scalar(python)}  # by `dlctl sites setup`"
    else:
        row, _ = marks.key_marks[("environment",)]
        following = [at for at in marks.key_marks.items() if at[0][:1] == ("environment",)]
        indent = " " * (min((c for t, (_, c) in following if len(t) == 2), default=3) - 1)
        lines[row - 1] = "environment:"
        lines.insert(row, f"{indent}python: {yaml_scalar(python)}")
    return "\n".join(lines)


def yaml_scalar(value: object) -> str:
    """Return a value as YAML in one line, quoted where it must be."""
    import json
    import re

    from dlctl.yaml_source import parse_scalar

    if isinstance(value, str):
        plain = re.fullmatch(r"[A-Za-z0-9_./][A-Za-z0-9_./@%+=-]*", value)
        if plain and isinstance(parse_scalar(value), str):
            return value
        kept = (c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in value)
        return '"' + "".join(kept) + '"'
    if isinstance(value, list):
        return "[" + ", ".join(yaml_scalar(item) for item in value) + "]"
    return json.dumps(value)


def check_name(name: str) -> None:
    """Refuse a name that is not a plain file name.

    Raises:
        SiteError
    """
    if not NAME_PATTERN.fullmatch(name):
        raise SiteError(f"{name!r} is not a valid site name", hint=NAME_RULE)


def _site(document: Document, name: str) -> Site:
    data = document.data
    if not isinstance(data, dict):
        raise YamlError([f"{document.name}: keys and values are expected, seen {data!r:.60}"])
    if "name" in data:
        where = document.where(("name",), key=True)
        raise YamlError([f"{where}: name: the file's name is the site's name; remove this key"])
    try:
        return Site.model_validate({"name": name, **data})
    except ValidationError as error:
        # No chain: pydantic's error holds the input.
        raise YamlError([_problem(fault, document) for fault in error.errors()]) from None


def _problem(fault: ErrorDetails, document: Document) -> str:
    trail: Trail = fault["loc"]
    key = ".".join(str(part) for part in trail) or "the file"
    if fault["type"] == "extra_forbidden":
        return f"{document.where(trail, key=True)}: {key}: unknown key; {_allowed_keys(trail)}"
    if fault["type"] == "missing":
        return f"{document.where(trail[:-1])}: {key}: is missing"
    given = f"{fault['input']!r:.60}"
    is_hidden = isinstance(fault["input"], (dict, BaseModel)) or has_credential(given)
    what = in_words(fault, "this value" if is_hidden else given)
    tail = "" if is_hidden or given in what else f" (seen {given})"
    return f"{document.where(trail)}: {key}: {what}{tail}"


def _allowed_keys(trail: Trail) -> str:
    model = _MODELS.get(str(trail[0]) if len(trail) > 1 else "", Site)
    keys = [field.alias or key for key, field in model.model_fields.items()]
    allowed = [key for key in keys if model is not Site or key != "name"]
    close = get_close_matches(str(trail[-1]), allowed, n=1)
    return f"did you mean {close[0]!r}?" if close else f"allowed are {', '.join(allowed)}"


def _wrong(name: str, problems: list[str]) -> SiteError:
    return SiteError(
        problems[0] if len(problems) == 1 else "\n  ".join([f"the site {name}:", *problems]),
        hint=f"`dlctl sites show {name}` prints the file; docs/sites.md lists the keys",
    )
