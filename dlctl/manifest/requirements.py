"""The lines of a manifest's `requirements`, with the files that they name read in."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl.errors import ManifestError
from dlctl.manifest.secrets import IN_REQUIREMENT, in_requirement

if TYPE_CHECKING:
    from dlctl.manifest.model import Manifest

_FILE = re.compile(r"(?:-r|--requirement)[\s=]*(.*)", re.ASCII)
_COMMENT = re.compile(r"(^|\s)#.*")
_OPTION = re.compile(r"(--[a-z-]+|-[a-zA-Z])[\s=]*(.*)", re.ASCII)
_ALLOWED = frozenset(
    ("--index-url", "-i", "--extra-index-url", "--no-index", "--find-links", "-f", "--pre",
     "--prefer-binary", "--no-binary", "--only-binary", "--trusted-host")
)  # fmt: skip
_MOST_FILES = 20


def requirement_lines(manifest: Manifest, folder: Path) -> list[str]:
    """Return the lines for pip, without comments; files are relative to the manifest's folder.

    Raises:
        ManifestError: with every line that can't be installed at a site, and files that can't be
            read, a line each.
    """
    where = manifest._places.by_key.get("requirements", "manifest")
    reader = _Reader()
    for line in manifest.requirements:
        reader.add(line, folder, f"{where}: requirements")
    if reader.problems:
        hint = "name packages as `pip install` does, such as boto3>=1.30"
        raise ManifestError("\n".join(reader.problems), problems=reader.problems, hint=hint)
    return reader.lines


def named_file(line: str) -> str:
    """Return the file that a line such as `-r more.txt` names, or ""."""
    match = _FILE.fullmatch(line.strip())
    return match[1].strip() if match else ""


class _Reader:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.problems: list[str] = []
        self._files = 0

    def add(self, line: str, folder: Path, where: str) -> None:
        text = _COMMENT.sub("", line).strip()
        if in_requirement(text):
            self.problems.append(f"{where}: {IN_REQUIREMENT}")
        elif name := named_file(text):
            self._read(folder / name, where)
        elif problem := _problem(text):
            self.problems.append(f"{where}: {problem}")
        elif text:
            self.lines.append(text)

    def _read(self, path: Path, where: str) -> None:
        self._files += 1
        if self._files > _MOST_FILES:
            if self._files == _MOST_FILES + 1:
                self.problems.append(f"{where}: more than {_MOST_FILES} files of requirements")
            return
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            self.problems.append(f"{where}: {path} can't be read: {why}")
            return
        begun = ""
        for number, line in enumerate([*text.splitlines(), ""], 1):
            if line.endswith("\\"):
                begun += line[:-1]
            else:
                self.add(begun + line, path.parent, f"{path.name}:{number}")
                begun = ""


def _problem(text: str) -> str:
    """Return why a line can't be installed at a site, or ""."""
    if not text.isprintable():
        return "control characters are not allowed"
    option = _OPTION.match(text)
    if option and option[1] not in _ALLOWED:
        return f"the option {option[1]} of pip is not possible here"
    place = option[2] if option and option[1] in ("--find-links", "-f") else ""
    if place and not place.startswith(("/", "http://", "https://")):
        return f"{place[:60]!r} is on no site; an absolute path there or a URL is allowed"
    is_path = text.startswith((".", "~")) or ("/" in text and "://" not in text)
    if not option and is_path and not text.startswith("/"):
        return (
            f"{text[:60]!r} is a path of this machine; a program imports its folder's own modules "
            "without installing them, and packages are named as pip's index names them"
        )
    return "" if option or is_path or not text else _not_a_requirement(text)


def _not_a_requirement(text: str) -> str:
    """Return why a line names no package by PEP 508, or ""."""
    from packaging.requirements import InvalidRequirement, Requirement

    bare = re.split(r"\s--(?:hash|config-settings|global-option)\b", text)[0]
    if "://" in bare and "@" not in bare.partition("://")[0]:
        return ""  # the address of a package or of a repository
    try:
        Requirement(bare)
    except InvalidRequirement:
        return f"{text[:60]!r} is no package with a version, as pip understands it"
    return ""
