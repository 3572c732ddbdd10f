"""Lines of text with colours that fit a width. Nothing in them can move the cursor."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate, zip_longest

from dlctl.contract.ground import safe_text

DIM, BOLD, RED, YELLOW, GREEN = -1, -2, 160, 178, 71
"""Styles; a number above 0 is a colour of the terminal's 256."""
TONES = {"waits": 69, "busy": 80, "good": GREEN, "warn": YELLOW, "bad": RED}
"""The styles of a state's tones."""
CURVES = (75, 209, 114, 176, 222, 80, 203, 147)
"""Colours of curves: apart from one another on dark and on light ground."""
_COLOURS = re.compile(r"\x1b\[[0-9;:?]*[ -/]*[@-~]")
"""Colours and other orders to a terminal."""
_ENDING = 9
"""So much of the end of a name that is too long stays: `-` and the random part of an id."""
_CODES = {DIM: "2", BOLD: "1"}


@dataclass
class Line:
    """A line of pieces, each with a style."""

    pieces: list[tuple[str, int]] = field(default_factory=list)

    def add(self, text: str, style: int = 0) -> Line:
        """Append a piece; return the line."""
        self.pieces.append((printable(text), style))
        return self

    @property
    def width(self) -> int:
        """Return how many columns it takes."""
        return sum(width_of(text) for text, _ in self.pieces)

    def fitted(self, width: int) -> Line:
        """Return the line, cut off with `…` if it is too wide."""
        if self.width <= width:
            return self
        found, left = Line(), width - 1
        for text, style in self.pieces:
            part = cut(text, left)
            found.pieces.append((part, style))
            left -= width_of(part)
            if part != text:
                break
        return found.add("…", DIM)

    def padded(self, width: int) -> Line:
        """Return the line with exactly this width."""
        line = self.fitted(width)
        return Line([*line.pieces, (" " * (width - line.width), 0)])

    def render(self, colours: bool) -> str:
        """Return the text, with ANSI codes if there are colours."""
        return "".join(
            f"\033[{_CODES.get(style) or f'38;5;{style}'}m{text}\033[0m"
            if colours and style and text.strip() else text
            for text, style in self.pieces
        ).rstrip()  # fmt: skip


def printable(text: str) -> str:
    """Return a text without colours, whose other control characters are escapes."""
    if text.isascii() and text.isprintable():
        return text
    return safe_text.printable(_COLOURS.sub("", text).replace("\t", " "))


def width_of(text: str) -> int:
    """Return how many columns a text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def cut(text: str, width: int) -> str:
    """Return as much of the beginning as fits."""
    if len(text) <= width and text.isascii():
        return text
    return text[: sum(end <= width for end in accumulate(map(width_of, text)))]


def shortened(text: str, width: int) -> str:
    """Return a name that fits, without its middle: what tells ids apart is their end."""
    text = printable(text)
    if width_of(text) <= width:
        return text
    ending = cut(text[::-1], min(_ENDING, width * 2 // 3))[::-1]
    return f"{cut(text, width - 1 - width_of(ending))}…{ending}"


def wrapped(head: Line, text: str, columns: int, style: int = 0) -> list[Line]:
    """Return a text behind a head, broken between words; further lines begin below its first."""
    width = max(8, columns - head.width)
    rows, row = [], ""
    for word in printable(text).split():
        longer = f"{row} {word}" if row else word
        if width_of(longer) <= width:
            row = longer
            continue
        rows += [row] if row else []
        while width_of(word) > width:  # wider than a line
            part = cut(word, width) or word[0]
            rows.append(part)
            word = word[len(part) :]
        row = word
    indent = " " * head.width
    return [
        Line([*(head.pieces if not i else [(indent, 0)]), (each, style)]).fitted(columns)
        for i, each in enumerate([*rows, row])
    ]  # fmt: skip


def page(
    head: Iterable[Line], body: Iterable[Line], keys: str, columns: int, rows: int
) -> list[Line]:
    """Return exactly `rows` lines, none wider than `columns`; the last one tells the keys."""
    foot = [Line().add(keys, DIM)] if keys else []
    lines = [*head, *body][: max(0, rows - len(foot))]
    lines += [Line()] * (rows - len(lines) - len(foot))
    return [line.fitted(columns) for line in [*lines, *foot]][:rows]


def texts(lines: Iterable[Line]) -> list[str]:
    """Return lines without colours, and without empty ones at the end."""
    return "\n".join(line.render(False) for line in lines).rstrip("\n").split("\n")


def beside(left: Iterable[Line], right: Iterable[Line], width: int) -> list[Line]:
    """Return two blocks side by side.

    Args:
        width: of the left block.
    """
    return [
        Line([*a.padded(width).pieces, ("  ", 0), *b.pieces])
        for a, b in zip_longest(left, right, fillvalue=Line())
    ]
