"""Makes text from elsewhere safe to print: names of files, trainings and nodes, and log lines."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any, TextIO

_USER = re.compile(r"://[^/\s@]+@")
_CREDENTIAL = re.compile(
    r"(?<!ssh)://(?!git@)[^/\s@]+@|://[^/\s@:]*:[^/\s@]+@"
    r"|://\S*[?&](?:sig|[\w-]*(?:token|signature|secret|password))=[^\s&#]", re.IGNORECASE
)  # fmt: skip


def printable(text: str | os.PathLike[str]) -> str:
    r"""Return a text as one line that moves no cursor and sets no colour.

    Line breaks, control characters, terminals' orders and marks that turn the direction of writing
    become escapes, such as `\n`, `\x1b` and `\u202e`; bytes that are not UTF-8 become `\xff`.
    """
    known = os.fspath(text)
    if known.isprintable():
        return known
    known = known.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in known)


def printable_lines(text: str) -> str:
    """Return a text of several lines; only its line breaks and tabs stay as they are."""
    if text.isprintable():
        return text
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))


def lines_of(text: str) -> list[str]:
    r"""Return the lines of a text, at whose end only `\n` counts.

    A file's name or a line of a log may hold what `str.splitlines` takes for an end, such as `\x1c`
    or `\u2028`, and would forge a line.
    """
    return without_suffix(text, "\n").split("\n") if text else []


def cells_for(stream: TextIO, row: Iterable[Any]) -> list[Any]:
    """Return the cells of a row: as they are for a program, and printable on a terminal."""
    shows = stream.isatty()
    return [printable(cell) if shows and isinstance(cell, str) else cell for cell in row]


def has_credential(text: str) -> bool:
    """Return whether a URL in a text has a user that may be a token, or a signature in its query.

    `git@` is none, nor is the name of a user before the host of an SSH server.
    """
    return bool(_CREDENTIAL.search(text))


def without_users(text: str) -> str:
    """Return a text without the users of URLs, and their passwords."""
    return _USER.sub("://", text)


LEAST_MASKED = 4
"""Shorter secrets are not masked: `***` would stand for harmless letters, and give them away."""


def masked(text: str, secrets: Iterable[str]) -> str:
    """Return a text with `***` in place of secrets, and of each line of one that has several."""
    parts = {part.strip() for secret in secrets for part in (secret, *secret.splitlines())}
    for part in sorted(parts, key=len, reverse=True):  # one may be a part of another
        if len(part) >= LEAST_MASKED:
            text = text.replace(part, "***")
    return text


def without_prefix(text: str, prefix: str) -> str:
    """Return what `str.removeprefix` does, which Python 3.8 lacks."""
    return text[len(prefix) :] if text.startswith(prefix) else text


def without_suffix(text: str, suffix: str) -> str:
    """Return what `str.removesuffix` does, which Python 3.8 lacks."""
    return text[: -len(suffix)] if suffix and text.endswith(suffix) else text
