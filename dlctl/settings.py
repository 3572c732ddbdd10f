"""The user's own settings: `$XDG_CONFIG_HOME/dlctl/config.yml`, which `dlctl config` writes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dlctl import contract
from dlctl.errors import ELSEWHERE, DlctlError
from dlctl.sites.model import xdg_directory


@dataclass(frozen=True)
class Setting:
    """One setting: what it means, and where it is looked up."""

    name: str
    text: str
    variable: str
    """An environment variable that takes precedence."""
    default: str


SETTINGS = {
    each.name: each
    for each in (
        Setting("site", "the site of commands without --site", "DLCTL_SITE", "local"),
        Setting("pager", "shows what is longer than the screen; `never`: nothing does",
                "DLCTL_PAGER", "less -FRX"),
    )
}  # fmt: skip


class SettingsError(DlctlError):
    """A setting that does not exist, or a file that can't be used."""

    exit_code = 2


def settings_file() -> Path:
    """Return the file of the settings."""
    return xdg_directory("XDG_CONFIG_HOME", ".config") / "dlctl" / "config.yml"


def setting(name: str) -> tuple[str, str]:
    """Return a setting's value, and where it comes from.

    Raises:
        SettingsError: there is no such setting, or the file can't be used.
    """
    known = _known(name)
    if value := os.environ.get(known.variable, ""):
        return value, f"${known.variable}"
    if value := _read().get(name, ""):
        return value, str(settings_file())
    return known.default, "default"


def change(name: str, value: str | None) -> None:
    """Write a setting; None takes it away.

    Raises:
        SettingsError: there is no such setting, or the file can't be used.
    """
    _known(name)
    values = {each: text for each, text in _read().items() if each != name}
    if value is not None:
        values[name] = value
    import yaml

    path = settings_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        contract.write_whole(path, yaml.safe_dump(values) if values else "")
    except OSError as error:
        raise SettingsError(f"{path} can't be written: {error.strerror}", hint=ELSEWHERE) from error


def _known(name: str) -> Setting:
    if name not in SETTINGS:
        raise SettingsError(f"{name!r} is no setting", hint=f"there are {', '.join(SETTINGS)}")
    return SETTINGS[name]


def _read() -> dict[str, str]:
    path = settings_file()
    if not path.exists() or not path.stat().st_size:
        return {}
    from dlctl.yaml_source import YamlError, load_file

    try:
        data = load_file(path, str(path)).data
    except YamlError as error:
        raise SettingsError(str(error), hint="correct the file, or remove it") from error
    if not isinstance(data, dict) or any(not isinstance(text, str) for text in data.values()):
        raise SettingsError(f"{path}: names with a text each are allowed",
                            hint=f"there are {', '.join(SETTINGS)}")  # fmt: skip
    return data
