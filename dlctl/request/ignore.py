"""Reads `.gitignore` and `.dlctlignore` files like git, including nested ones.

The deepest file with a matching rule decides; in one folder `.dlctlignore` wins over `.gitignore`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dlctl.contract import PULLED_FROM, SENT_INDEX
from dlctl.contract.ground.safe_text import printable
from dlctl.errors import BundleError
from dlctl.request.gitignore import Pattern, parse

_GIT, _OWN = ".gitignore", ".dlctlignore"
_ALWAYS_LEFT_OUT = frozenset(
    {
        ".git", ".hg", ".svn", ".venv", "__pycache__", ".mypy_cache", ".pytest_cache",
        ".ruff_cache", ".hypothesis", ".ipynb_checkpoints", ".tox", ".nox", ".eggs",
        "node_modules", ".DS_Store", ".idea", ".vscode", ".dlctl", SENT_INDEX, PULLED_FROM,
    }
)  # fmt: skip
"""Names that are never sent, at any level. Virtual environments and `results/` aren't, either.
An index of dlctl's own would be replaced, `.dlctl-model` is its note, and `.dlctl/` has what
`dlctl init` writes for editors."""


def is_left_out(name: str) -> bool:
    """Return whether a file or folder of this name is never sent."""
    return name in _ALWAYS_LEFT_OUT or name.startswith(".nfs")  # open files that NFS has renamed


@dataclass(frozen=True)
class _Rules:
    """The rules of the two ignore files of one folder."""

    prefix: str
    """The prefix of its paths, relative to the folder that is sent; empty for files above it."""
    above: str
    """The path from an ignore file above the folder down to the folder."""
    place: str
    """The path from the folder that is sent to this one, with a `/` at its end, or empty."""
    patterns: tuple[tuple[str, Pattern], ...]
    """The file's name and its line, the weakest first."""

    def deciding(self, path: str, is_folder: bool, own: bool = False) -> tuple[str, Pattern] | None:
        """Return the last line that matches; with `own` only those of `.dlctlignore` count."""
        name = os.fsencode(self.above + path[len(self.prefix) :])
        return next(
            (each for each in reversed(self.patterns)
             if (not own or each[0] == _OWN) and each[1].matches(name, is_folder)), None
        )  # fmt: skip


@dataclass(frozen=True)
class Ignore:
    """The rules that apply in one folder, the outermost first."""

    rules: tuple[_Rules, ...] = ()

    @classmethod
    def of_ancestors(cls, root: Path) -> Ignore:
        """Return the rules of the git repository that contains the folder."""
        top = next((p for p in (root, *root.parents) if (p / ".git").exists()), root)
        found: tuple[_Rules, ...] = ()
        for folder in reversed(root.parents):
            if folder.is_relative_to(top):
                above = root.relative_to(folder).as_posix() + "/"
                found += _rules(folder, "", above, "../" * above.count("/"))
        return cls(found)

    def below(self, folder: Path, prefix: str) -> Ignore:
        """Return these rules plus those of a folder's own files."""
        return Ignore(self.rules + _rules(folder, prefix, "", prefix))

    def leaves_out(self, path: str, is_folder: bool) -> str:
        """Return the rule that excludes a path, such as `.gitignore:3`; empty if none does."""
        for rules in reversed(self.rules):
            if found := rules.deciding(path, is_folder):
                file, pattern = found
                return "" if pattern.is_allowing else f"{rules.place}{file}:{pattern.line}"
        return ""

    def allows(self, path: str) -> bool:
        """Return whether a `.dlctlignore` has the line `!path`."""
        for rules in reversed(self.rules):
            if found := rules.deciding(path, is_folder=False, own=True):
                return found[1].is_allowing
        return False


def _rules(folder: Path, prefix: str, above: str, place: str) -> tuple[_Rules, ...]:
    found = tuple((name, each) for name in (_GIT, _OWN) for each in parse(_content(folder / name)))
    return (_Rules(prefix, above, place, found),) if found else ()


def _content(file: Path) -> bytes:
    try:
        return b"" if file.is_fifo() else file.read_bytes()  # a pipe may never have a writer
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return b""
    except OSError as error:
        raise BundleError(
            f"{printable(file)} can't be read: {error.strerror}",
            hint="make it readable (chmod u+r): it says what is not sent",
        ) from error
