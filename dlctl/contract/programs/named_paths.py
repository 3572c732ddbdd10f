"""Finds the paths that a line of a program, or of what it printed, names. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator

from dlctl.contract.ground.safe_text import printable, without_prefix, without_suffix
from dlctl.contract.sent_files import BY_DLCTL, LeftOut

_QUOTED = re.compile(r"""(["'])(.+?)\1""")
_WORD = re.compile(r"""[^\s"'`(),;=:<>|&\[\]{}]+""")
_KEY = re.compile(
    r"""(?<=[\w)\]])\[\s*(?:"[^"]*"|'[^']*')\s*\]|\b(?:get|pop)\(\s*(?:"[^"]*"|'[^']*')"""
    r"""|(?:"[^"]*"|'[^']*')(?=\s*:\s)"""
)
"""The key of a dictionary, which is no path."""
_MODULE = re.compile(r"""(?:\bNo module named ["']?|^\s*(?:from|import)\s+)(\w[\w.]*)""")
_SENT_FOLDER = re.compile(r"^/(?:.*/)?code/(?:[0-9a-f]{32}(?:[0-9a-f]{32})?/)?")
_MISSES = re.compile(
    r"(?i)no such file|not found|no module named|does(?: not|n't) exist|FileNotFound"
    r"|(?:can't|cannot|couldn't|could not|unable to|failed to) (?:open|find|read|access|load)"
)


def named_paths(line: str, *, is_shell: bool = False) -> Iterator[str]:
    """Yield what may be paths below the submitted folder.

    Args:
        line: A line of a program, or one that a program printed.
        is_shell: Whether a word without quotes, dots and slashes may be a path.
    """
    rest = _KEY.sub(" ", line)
    words = [word for word in _WORD.findall(rest) if is_shell or "/" in word or "." in word]
    for word in [*(match[2] for match in _QUOTED.finditer(rest)), *words]:
        path = posixpath.normpath(_SENT_FOLDER.sub("", word))
        if not path.startswith(("/", "..", "$")) and path != ".":
            yield path


def imported_paths(line: str) -> Iterator[str]:
    """Yield `a/b.py` for each module `a.b` that a line imports or misses."""
    for match in _MODULE.finditer(line):
        yield f"{match[1].replace('.', '/')}.py"


def missed(lines: Iterable[str], left_out: Iterable[LeftOut]) -> tuple[str, LeftOut] | None:
    """Return the path that a program did not find and that was not sent, with its rule."""
    known = list(left_out)
    for line in filter(_MISSES.search, lines if known else ()):
        modules = list(imported_paths(line))
        for path in modules or named_paths(line):
            places = {path, without_suffix(path, ".py")} if modules else {path}
            for item in known:
                if (item.has_modules or not modules) and any(lies_in(p, item) for p in places):
                    return path, item
    return None


def lies_in(path: str, item: LeftOut) -> bool:
    """Return whether a path is what was left out, or is in it."""
    return f"{path}/".startswith(f"{item.path.rstrip('/')}/")


def allowing_line(item: LeftOut) -> tuple[str, str]:
    """Return the file and the line in it that lets something be sent."""
    folder = item.rule.rpartition("/")[0]
    place = "" if not folder or folder.startswith("..") else f"{folder}/"
    name = re.sub(r"([*?\[\\])", r"\\\1", without_prefix(item.path, place))
    return f"{place}.dlctlignore", f"!/{name}"


def how_to_send(item: LeftOut) -> str:
    """Return which line leaves something out, and which one sends it."""
    if item.rule == BY_DLCTL:
        return "dlctl never sends it. Move it, or put it into a data store."
    file, line = allowing_line(item)
    return (
        f"{printable(item.rule)} leaves it out. To send it, add the line {printable(line)} to "
        f"{printable(file)}, or put it into a data store."
    )
