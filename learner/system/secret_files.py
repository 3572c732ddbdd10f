"""Read the credential behind a reference, on the node; no message holds its value."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path

from learner.errors import UserFault


def resolve_secret(name: str, reference: str, root: Path, base: Mapping[str, str]) -> str:
    """Return the value behind `env:NAME` or `file:PATH` (relative to the site's root)."""
    kind, _, where = reference.partition(":")
    if kind == "env" and where in base:
        return base[where]
    if kind == "env":
        raise UserFault(
            f"The secret {name} refers to the variable {where!r}, which is not set on this node.",
            hint=f"Set {where} in the site's environment, or refer to a file with file:PATH.",
        )
    if kind != "file":
        raise UserFault(
            f"The secret {name} has a reference of an unknown kind, {kind!r}.",
            hint="References are env:NAME or file:PATH.",
        )
    return _read_secret(name, root / Path(where).expanduser())


def _read_secret(name: str, path: Path) -> str:
    try:
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise UserFault(
                f"The secret {name} is in a file that others may read: {str(path)!r}.",
                hint=f"Run on that node: chmod 600 {path}",
            )
        return path.read_text().rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8 text"
        raise UserFault(
            f"The secret {name} can't be read from {str(path)!r}: {why}.",
            hint="Put the file there with mode 0600, or submit again.",
        ) from error
