"""Reads `.gitignore` and `.dlctlignore` files like git, including nested ones.

The deepest file with a matching rule decides; in one folder `.dlctlignore` wins over `.gitignore`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pathspec

from dlctl.contract import PULLED_FROM, SENT_INDEX

_ALWAYS_LEFT_OUT = frozenset(
    {
        ".git", ".hg", ".svn", ".venv", "__pycache__", ".mypy_cache", ".pytest_cache",
        ".ruff_cache", ".hypothesis", ".ipynb_checkpoints", ".tox", ".nox", ".eggs",
        "node_modules", ".DS_Store", ".idea", ".vscode", SENT_INDEX,
        PULLED_FROM,
    }
)  # fmt: skip
"""Names that are never sent, at any level. Virtual environments and `results/` aren't, either.
An index of dlctl's own would be replaced, and `.dlctl-model` is its note."""


def is_left_out(name: str) -> bool:
    """Return whether a file or folder of this name is never sent."""
    return name in _ALWAYS_LEFT_OUT or name.startswith(".nfs")  # open files that NFS has renamed


@dataclass(frozen=True)
class _Rules:
    prefix: str
    """The prefix of its paths, relative to the folder that is sent; empty for files above it."""
    above: str
    """The path from an ignore file above the folder down to the folder."""
    spec: pathspec.GitIgnoreSpec
    allowing: pathspec.GitIgnoreSpec
    """The rules of `.dlctlignore` alone: only `!path` in this file allows a secret."""


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
                found += _rules(folder, "", above)
        return cls(found)

    def below(self, folder: Path, prefix: str) -> Ignore:
        """Return these rules plus those of a folder's own files."""
        return Ignore(self.rules + _rules(folder, prefix, ""))

    def leaves_out(self, path: str, is_folder: bool) -> bool:
        """Return whether a path is excluded."""
        for rules in reversed(self.rules):
            name = rules.above + path[len(rules.prefix) :] + ("/" if is_folder else "")
            verdict = rules.spec.check_file(name).include
            if verdict is not None:
                return verdict
        return False

    def allows(self, path: str) -> bool:
        """Return whether a `.dlctlignore` has the line `!path`."""
        for rules in reversed(self.rules):
            verdict = rules.allowing.check_file(rules.above + path[len(rules.prefix) :]).include
            if verdict is not None:
                return not verdict
        return False


def _rules(folder: Path, prefix: str, above: str) -> tuple[_Rules, ...]:
    git, own = _lines(folder / ".gitignore"), _lines(folder / ".dlctlignore")
    if not git and not own:
        return ()
    spec = pathspec.GitIgnoreSpec.from_lines([*git, *own])
    return (_Rules(prefix, above, spec, pathspec.GitIgnoreSpec.from_lines(own)),)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text("utf-8-sig", "surrogateescape").splitlines()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return []
