"""The index of a folder that was sent: the runtime, or the user's code.

The folder's name on the site begins with the index's SHA-256, and the index has that of each file:
the name is enough to tell whether the folder still is what was sent.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from dlctl.contract.ground.whole_files import sha256_of

SENT_INDEX = ".dlctl-index"
"""The index of a sent folder, in it: a line per file, `<sha256> <bytes> <kind> <path>`."""
BY_DLCTL = "dlctl"
"""The rule for what dlctl never sends, such as `results/`."""
DIGEST_LENGTH = 32
"""Length of the digest of a folder with an index."""

_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}
_LINE = re.compile(r"([0-9a-f]{64}) (\d+) ([fxl]) (.+)")


class SentFile(NamedTuple):
    """One line of the index."""

    sha256: str
    """The sum of the content; for a link, of its target."""
    size_bytes: int
    kind: Literal["f", "x", "l"]
    """A file, an executable file, or a symbolic link."""
    path: str
    """Relative; bytes that are not UTF-8 are surrogate escapes."""


@dataclass(frozen=True)
class LeftOut:
    """A file or a folder of the user's folder that was not sent."""

    path: str
    """Relative to the user's folder; a folder ends with `/`."""
    rule: str
    """The line that excludes it, as `lib/.gitignore:3`, or `dlctl`."""
    has_modules: bool = False
    """It holds Python files, so a program may import it."""


def index_text(files: Iterable[SentFile]) -> bytes:
    """Return the index, sorted by path."""
    lines = (
        f"{f.sha256} {f.size_bytes} {f.kind} {_escaped(f.path)}\n"
        for f in sorted(files, key=lambda file: os.fsencode(file.path))
    )
    return "".join(lines).encode("utf-8", "surrogateescape")


def index_digest(index: bytes) -> str:
    """Return the name of a folder with this index."""
    return hashlib.sha256(index).hexdigest()[:DIGEST_LENGTH]


def parse_index(index: bytes) -> list[SentFile]:
    """Return the files of an index.

    Raises:
        ValueError: a line is not one of an index.
    """
    files = []
    for line in index.decode("utf-8", "surrogateescape").split("\n")[:-1]:
        found = _LINE.fullmatch(line)
        if found is None:
            raise ValueError(f"{line[:80]!r} is not a line of an index")
        files.append(SentFile(found[1], int(found[2]), found[3], _unescaped(found[4])))  # type: ignore[arg-type]
    return files


def _escaped(path: str) -> str:
    return "".join(_ESCAPES.get(character, character) for character in path)


def _unescaped(path: str) -> str:
    return re.sub(r"\\(.)", lambda found: {"n": "\n", "r": "\r"}.get(found[1], found[1]), path)


def digest_of_link(target: str) -> str:
    """Return the digest of a symbolic link."""
    return hashlib.sha256(os.fsencode(target)).hexdigest()


def missing_files(folder: Path, files: Iterable[SentFile]) -> list[str]:
    """Return the paths of the files that are no longer in a folder."""
    return [file.path for file in files if not os.path.lexists(folder / file.path)]


def changed_files(folder: Path, files: Iterable[SentFile]) -> list[str]:
    """Return the paths of the files in a folder that are not what was sent; reads them all."""
    return [
        file.path
        for file in files
        if os.path.lexists(folder / file.path) and _digest(folder / file.path) != file.sha256
    ]


def _digest(path: Path) -> str:
    try:
        if path.is_symlink():
            return digest_of_link(os.readlink(path))
        return sha256_of(path)
    except OSError:
        return ""
