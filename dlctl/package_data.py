"""Find the data files that ship with dlctl: `templates/`, `site_configs/`, constraints.txt."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def data_path(name: str) -> Path:
    """Return one of them, in a wheel or in a checkout."""
    installed = _PACKAGE / "_data" / name
    return installed if installed.exists() else _PACKAGE.parent / name
