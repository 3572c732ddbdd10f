"""Reads the patterns of an ignore file and matches paths as git does: byte for byte. Pure.

A line becomes a regular expression of bytes. It follows git's `dir.c` and `wildmatch.c`, odd cases
included: `[z-a]` is a `z`, an unclosed bracket or a backslash at the end matches nothing, and `**`
crosses folders only between slashes, or right behind a beginning without wildcards.
"""

from __future__ import annotations

import functools
import re
import string
from collections.abc import Iterator
from typing import NamedTuple

_WILD = re.compile(rb"[*?\[\\]")
_NOTHING = rb"(?!)"
_ALL = frozenset(range(256))
_CLASSES = {
    name: frozenset(text.encode())
    for name, text in {
        "alnum": string.ascii_letters + string.digits, "alpha": string.ascii_letters,
        "blank": " \t", "cntrl": "".join(map(chr, [*range(32), 127])), "digit": string.digits,
        "graph": "".join(map(chr, range(33, 127))), "lower": string.ascii_lowercase,
        "print": "".join(map(chr, range(32, 127))), "punct": string.punctuation,
        "space": " \t\n\r", "upper": string.ascii_uppercase, "xdigit": string.hexdigits,
    }.items()
}  # fmt: skip


class Pattern(NamedTuple):
    """One line of an ignore file."""

    line: int
    """Counted from 1."""
    is_allowing: bool
    """`!pattern`: what it matches is not ignored."""
    folders_only: bool
    by_name: bool
    """It has no slash, and is compared with the last part of a path."""
    expression: re.Pattern[bytes]

    def matches(self, path: bytes, is_folder: bool) -> bool:
        """Return whether a path below the ignore file's folder fits."""
        if self.folders_only and not is_folder:
            return False
        return bool(self.expression.fullmatch(path.rpartition(b"/")[2] if self.by_name else path))


def parse(content: bytes) -> Iterator[Pattern]:
    """Yield the patterns of an ignore file, in order."""
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    for number, line in enumerate(lines, 1):
        text = _without_end(line.removesuffix(b"\r").partition(b"\0")[0])
        if text and not text.startswith(b"#"):
            is_allowing = text.startswith(b"!")
            text = text[is_allowing:]
            shown = text.removesuffix(b"/")
            by_name = b"/" not in shown
            expression = _by_name(shown) if by_name else _by_path(shown)
            yield Pattern(number, is_allowing, text != shown, by_name, expression)


def _without_end(line: bytes) -> bytes:
    """Return a line without the blanks at its end, unless a backslash keeps one."""
    found = re.fullmatch(rb"((?:\\.|[^\\])*?) *", line, re.DOTALL)
    return found[1] if found else line  # a lone backslash is its end


@functools.lru_cache(maxsize=1024)
def _by_name(pattern: bytes) -> re.Pattern[bytes]:
    return re.compile(_translated(pattern, crosses=True), re.DOTALL)


@functools.lru_cache(maxsize=1024)
def _by_path(pattern: bytes) -> re.Pattern[bytes]:
    pattern = pattern.removeprefix(b"/")
    wild = _WILD.search(pattern)
    plain = wild.start() if wild else len(pattern)
    rest = _translated(pattern[plain:], crosses=False)
    return re.compile(re.escape(pattern[:plain]) + rest, re.DOTALL)


def _translated(pattern: bytes, *, crosses: bool) -> bytes:
    """Return the regular expression.

    Args:
        pattern: What follows the beginning without wildcards.
        crosses: Whether wildcards match a slash.
    """
    found, position = b"", 0
    while position < len(pattern):
        character = pattern[position : position + 1]
        if character == b"*":
            part, position = _stars(pattern, position, crosses)
        elif character == b"[":
            members, position = _bracket(pattern, position + 1)
            part = _one_of(members if crosses else members - {ord("/")})
        elif character == b"?":
            part, position = b"." if crosses else b"[^/]", position + 1
        else:
            position += character == b"\\"
            if position == len(pattern):
                return _NOTHING
            part, position = re.escape(pattern[position : position + 1]), position + 1
        found += part
    return found


def _stars(pattern: bytes, start: int, crosses: bool) -> tuple[bytes, int]:
    """Return what a run of asterisks becomes, and where the pattern goes on."""
    end = start
    while pattern[end : end + 1] == b"*":
        end += 1
    if crosses:
        return b".*", end
    begins = start == 0 or pattern[start - 1 : start] == b"/"
    if end - start == 1 or not begins:
        return b"[^/]*", end
    if pattern[end : end + 1] == b"/":
        return b"(?:.*/)?", end + 1
    if end == len(pattern) or pattern[end : end + 2] == b"\\/":
        return b".*", end
    return b"[^/]*", end


def _bracket(pattern: bytes, position: int) -> tuple[frozenset[int], int]:
    """Return the bytes that a bracket matches, and where the pattern goes on behind it."""
    nothing = frozenset[int](), len(pattern)
    is_inverted = pattern[position : position + 1] in (b"!", b"^")
    position += is_inverted
    members, before, is_first = set[int](), 0, True
    while is_first or pattern[position : position + 1] != b"]":
        is_first = False
        if position >= len(pattern):
            return nothing
        character, following = pattern[position], pattern[position + 1 : position + 2]
        if character == ord("-") and before and following not in (b"", b"]"):
            position += 1 + (following == b"\\")
            if position >= len(pattern):
                return nothing
            members |= set(range(before, pattern[position] + 1))
            before = 0
        elif character == ord("[") and following == b":":
            end = pattern.find(b"]", position + 2)
            if end < 0:
                return nothing
            if end > position + 2 and pattern[end - 1 : end] == b":":
                name = pattern[position + 2 : end - 1].decode("latin-1")
                if name not in _CLASSES:
                    return nothing
                members |= _CLASSES[name]
                before, position = 0, end
            else:
                members.add(character)
                before = character
        else:
            position += character == ord("\\")
            if position >= len(pattern):
                return nothing
            before = pattern[position]
            members.add(before)
        position += 1
    return (_ALL - members if is_inverted else frozenset(members)), position + 1


def _one_of(members: frozenset[int]) -> bytes:
    if not members:
        return _NOTHING
    return b"[" + b"".join(b"\\x%02x" % each for each in sorted(members)) + b"]"
