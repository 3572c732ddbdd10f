"""The Python tracebacks in a learner's log, and which of their frames are the user's. Pure.

A log keeps every line. What people are shown begins at the user's own program: files below the
job's code folder, or if no frame is there, files that belong to no installed package.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from dlctl.contract.ground.safe_text import without_prefix
from dlctl.contract.names import CODE

_HEADER = re.compile(
    r"(?P<prefix>(?:\[(?:rank|server) ?\d+[^\]]*\]:? )?)"  # of the built-in loop, or of torch
    r"(?P<head>(?:Original )?Traceback \(most recent call last\):)$"
)
_SPEAKER = re.compile(r"^\[(?:rank|server) \d+ on [^\]]*\] ?")
_FRAME = re.compile(r'\s*File "(?P<path>.+)", line (?P<line>\d{1,9})(?!\d)')
_IN_CODE = re.compile(rf".*/jobs/[^/]+/{CODE}/(?P<rest>.+)")
_INSTALLED = re.compile(
    r".*/(?:site|dist)-packages/(?P<package>.+)|.*/runtime/[0-9a-f]{32}/(?P<ours>.+)"
    r"|.*/lib(?:64)?/python\d[^/]*/(?P<standard>.+)|.*/bin/(?P<script>[^/.]+)"
    r"|<(?!string>|stdin>)(?P<built_in>.+)>"
)
_THIS_PACKAGE = f"{Path(__file__).resolve().parents[2]}/"


@dataclass(frozen=True)
class Frame:
    """One call of a traceback: a line that names file and line, and those that quote the source."""

    path: str
    line: int
    text: list[str]

    @property
    def name(self) -> str:
        """Return the file as people know it, such as `train.py` or `torch/serialization.py`."""
        if inside := _IN_CODE.fullmatch(self.path):
            return inside["rest"]
        if installed := _INSTALLED.fullmatch(self.path):
            return next(part for part in installed.groups() if part)
        return without_prefix(self.path, _THIS_PACKAGE)

    @property
    def place(self) -> str:
        """Return `train.py:14`."""
        return f"{self.name}:{self.line}"

    @property
    def rank(self) -> int:
        """Return 2 in the submitted program, 1 in another program, 0 in an installed package."""
        if _INSTALLED.fullmatch(self.path) or self.path.startswith(_THIS_PACKAGE):
            return 0
        return 2 if _IN_CODE.fullmatch(self.path) or not self.path.startswith(("/", "<")) else 1


def _theirs(frames: list[Frame]) -> list[Frame]:
    """Return the user's frames."""
    best = max((frame.rank for frame in frames), default=0)
    return [frame for frame in frames if best and frame.rank == best]


@dataclass
class Traceback:
    """One traceback as Python printed it."""

    prefix: str
    """Before each of its lines: the rank, if several processes print."""
    head: str
    frames: list[Frame] = field(default_factory=list)
    counted: list[str] = field(default_factory=list)
    """Before the first frame: lines of a traceback that was shortened before."""
    error: str = ""
    """The line that names the exception; empty if the log ends before it."""

    def short(self) -> list[str]:
        """Return its lines from the user's first frame on, with those of packages counted only."""
        theirs = _theirs(self.frames)
        skipped: list[Frame] = []
        lines = [self.head, *self.counted]
        begun = not theirs
        for frame in self.frames:
            if frame in theirs:
                lines += _count(skipped) if begun else []
                begun, skipped = True, []
                lines += [frame.text[0].replace(f'"{frame.path}"', f'"{frame.name}"', 1)]
                lines += frame.text[1:]
            else:
                skipped.append(frame)
        lines += [*_count(skipped), *([self.error] if self.error else [])]
        return [self.prefix + line for line in lines]

    @property
    def failure(self) -> tuple[str, ...]:
        """Return what processes that failed alike share; numbers in their messages may differ."""
        return re.sub(r"\d+", "#", self.error), *(frame.place for frame in self.frames)


def _count(frames: list[Frame]) -> list[str]:
    if not frames:
        return []
    calls = "1 call" if len(frames) == 1 else f"{len(frames)} calls"
    return [f"  … {calls} in packages, the last at {frames[-1].place}"]


class TracebackReader:
    """Finds the tracebacks in lines that come one by one."""

    def __init__(self) -> None:
        self._open: Traceback | None = None

    def feed(self, line: str) -> list[str | Traceback]:
        """Return what this line completes: itself, a traceback, both, or nothing yet."""
        if self._open is None:
            return self._begin(line)
        found = self._open
        body = without_prefix(line, found.prefix)
        if found.prefix and body == line:  # another process's line, or the end
            return [*self.rest(), *self._begin(line)]
        if body.startswith("  "):
            if frame := _FRAME.match(body):
                found.frames.append(Frame(frame["path"], int(frame["line"]), [body]))
            else:
                (found.frames[-1].text if found.frames else found.counted).append(body)
            return []
        if not body or not (found.frames or found.counted):
            return [*self.rest(), *self._begin(line)]
        found.error = body
        return self.rest()

    def rest(self) -> list[str | Traceback]:
        """Return a traceback that has not ended."""
        found, self._open = self._open, None
        return [found] if found else []

    def _begin(self, line: str) -> list[str | Traceback]:
        if head := _HEADER.match(line):
            self._open = Traceback(head["prefix"], head["head"])
            return []
        return [line]


def shorten(lines: Iterable[str]) -> list[str]:
    """Return lines of a log with each traceback as `Traceback.short` shows it."""
    reader = TracebackReader()
    found = [each for line in lines for each in reader.feed(line)] + reader.rest()
    return [line for each in found for line in ([each] if isinstance(each, str) else each.short())]


def without_speaker(line: str) -> str:
    """Return a line without the rank and host that the built-in loop prints before it."""
    return _SPEAKER.sub("", line)


_IGNORED = re.compile(r"Exception ignored (?:in|on)\b|Error in atexit")
_CHAINED = re.compile(r"During handling of the above|The above exception was the direct cause")


def last_chain(lines: list[str]) -> list[str]:
    """Return the lines from the last traceback on, with those that led to it.

    A traceback whose exception Python ignored at the end of a process does not count. Without any
    traceback the answer is empty.
    """
    return next(reversed(chains(lines)), [])


def error_at_end(lines: list[str], lines_after: int) -> str:
    """Return the error of the traceback with which a log ends, or "" if it ends otherwise.

    Args:
        lines_after: how many lines may follow it at most.
    """
    chain = last_chain(lines)
    heads = [(n, it["prefix"]) for n, line in enumerate(chain) if (it := _HEADER.match(line))]
    last, prefix = heads[-1] if heads else (0, "")
    bodies = [without_prefix(line, prefix) for line in chain[last + 1 :]]
    after = [line for line in bodies if line[:1] != " "]
    return after[0].strip() if after and len(after) <= 1 + lines_after else ""


def chains(lines: list[str]) -> list[list[str]]:
    """Return the lines from each traceback to the next, together with those that led to it."""
    heads: list[int] = []
    end = len(lines)
    for index, line in enumerate(lines):
        if _HEADER.match(line) is None:
            continue
        before = [other for other in lines[max(0, index - 3) : index] if other.strip()]
        if before and _IGNORED.search(before[-1]):
            end = index - 1
            break
        if not (heads and before and _CHAINED.search(before[-1])):
            heads.append(index)
    ends = [*heads[1:], end]
    return [lines[head : ends[n]] for n, head in enumerate(heads)]


def place_before(lines: list[str], line: str) -> str:
    """Return where the user's program raised the error of a line, as `train.py:14`, or ""."""
    found = (_FRAME.match(other) for other in lines[: lines.index(line)])
    theirs = _theirs([Frame(f["path"], int(f["line"]), []) for f in found if f])
    return theirs[-1].place if theirs else ""
