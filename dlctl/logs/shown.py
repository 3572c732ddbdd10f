"""Show lines of logs as a terminal shows them, in a form that can't drive one. Pure.

A carriage return goes back to the beginning of the line, so that of a progress bar its last state
is left. Colours may pass; other orders to a terminal are dropped where they only move its cursor,
and everything else that is not text becomes visible: titles, clipboards, links, bidi overrides.
Tracebacks are shortened to the lines of the user's program.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from dlctl.contract.programs.tracebacks import Traceback, TracebackReader

if TYPE_CHECKING:
    from dlctl.logs.reader import LogPiece

_ODD = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
"""What is not text: controls, marks that turn the direction of the text, invisible tags."""
_ORDER = re.compile(r"\x1b\[([0-?]*)[ -/]*([@-~])|[\r\b]")
_SIMPLE = {*range(5), 7, 9, *range(21, 26), 27, 29, *range(30, 38), *range(39, 48), 49,
           *range(90, 98), *range(100, 108)} - {0}  # fmt: skip
"""Colours and weights; neither blinking nor hidden text."""
_MOST_STYLES = 12
_RESET = "\x1b[0m"


def shown(line: str, colours: bool) -> str:
    """Return what is seen of a line, which holds no newline.

    Args:
        colours: Whether the line's own colours may pass.
    """
    if _ODD.search(line) is None:
        return line
    line = line.rstrip("\r")
    if "\x1b[" not in line and "\b" not in line:
        return _visible(_overwritten(line.split("\r")) if "\r" in line else line)
    return _Row(line).text(colours)


def _overwritten(parts: list[str]) -> str:
    row = ""
    for part in parts:
        row = part + row[len(part) :]
    return row.rstrip()


def _visible(text: str) -> str:
    return _ODD.sub(_named, text)


def _named(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class _Row:
    """The cells of one line, each a character with the colours it was written in."""

    def __init__(self, line: str) -> None:
        self._cells: list[tuple[str, str]] = []
        self._at = 0
        self._styles: list[str] = []
        written = 0
        for order in _ORDER.finditer(line):
            self._write(line[written : order.start()])
            self._obey(order)
            written = order.end()
        self._write(line[written:])

    def text(self, colours: bool) -> str:
        """Return the line, with each run of a colour closed."""
        parts, style = [], ""
        for char, own in self._cells:
            if colours and own != style:
                parts.append((_RESET if style else "") + (f"\x1b[{own}m" if own else ""))
                style = own
            parts.append(char)
        return "".join([*parts, _RESET if style else ""]).rstrip(" ")

    def _write(self, text: str) -> None:
        style = ";".join(self._styles)
        for char in _visible(text):
            if self._at < len(self._cells):
                self._cells[self._at] = char, style
            else:
                self._cells.append((char, style))
            self._at += 1

    def _obey(self, order: re.Match[str]) -> None:
        if order[0] == "\r":
            self._at = 0
        elif order[0] == "\b":
            self._at = max(0, self._at - 1)
        elif order[2] == "m":
            self._colour(order[1])
        elif order[2] == "K":
            self._erase(order[1])

    def _erase(self, which: str) -> None:
        if which in ("", "0"):
            del self._cells[self._at :]
        elif which in ("1", "2"):
            end = len(self._cells) if which == "2" else min(self._at + 1, len(self._cells))
            self._cells[:end] = [(" ", "")] * end
            if which == "2":
                del self._cells[self._at :]

    def _colour(self, parameters: str) -> None:
        """Take over the colours among the parameters of an order."""
        words = parameters.split(";")
        while words:
            word = words.pop(0)
            if word in ("", "0", "00"):
                self._styles = []
            elif word in ("38", "48"):
                count = {"5": 2, "2": 4}.get(words[0] if words else "", 0)
                group, words = words[:count], words[count:]
                if count and len(group) == count and all(_is_byte(each) for each in group):
                    self._styles.append(";".join([word, *group]))
            elif _is_byte(word) and int(word) in _SIMPLE:
                self._styles.append(str(int(word)))
        self._styles = self._styles[-_MOST_STYLES:]


def _is_byte(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) <= 3 and int(word) < 256


class ShownLog:
    """Makes lines of the bytes of one log.

    Args:
        colours: Whether the log's own colours may pass.
    """

    def __init__(self, colours: bool) -> None:
        self._colours = colours
        self._bar = ""
        """The visible part of a line with carriage returns whose end has not come."""

    def lines(self, content: bytes) -> list[str]:
        """Return the lines that are whole now; a very long line comes in parts."""
        text = content.decode(errors="replace")
        if not self._bar and _ODD.search(text) is None:
            return text.removesuffix("\n").split("\n")
        *whole, last = text.split("\n")
        if whole:
            whole[0] = self._after_bar(whole[0])
        elif last:
            last = self._after_bar(last)
        if last and "\r" in last:
            self._bar = shown(last, colours=False)
            last = ""
        return [shown(line, self._colours) for line in [*whole, *([last] if last else [])]]

    def rest(self) -> list[str]:
        """Return a line whose end never came."""
        bar, self._bar = self._bar, ""
        return [bar] if bar else []

    def _after_bar(self, text: str) -> str:
        bar, self._bar = self._bar, ""
        return f"{bar}\r{text}" if bar and not text.startswith("\r") else bar + text


def shortened(pieces: Iterable[LogPiece]) -> Iterator[LogPiece]:
    """Yield the pieces, of each traceback only the lines of the user's program.

    A traceback is held back until its last line has come. If another process of the same attempt
    has failed alike before, one line says so.
    """
    readers: dict[tuple[int, str], TracebackReader] = {}
    shown: dict[int, dict[tuple[str, ...], str]] = {}
    newest: dict[tuple[int, str], LogPiece] = {}
    for piece in pieces:
        key = piece.attempt, piece.source
        reader, newest[key] = readers.setdefault(key, TracebackReader()), piece
        lines = piece.content.decode(errors="surrogateescape").removesuffix("\n").split("\n")
        found = [each for line in lines for each in reader.feed(line)]
        yield from _piece(piece, found, shown.setdefault(piece.attempt, {}))
    for key, reader in readers.items():
        yield from _piece(newest[key], reader.rest(), shown[key[0]])


def _piece(
    piece: LogPiece, found: list[str | Traceback], shown: dict[tuple[str, ...], str]
) -> Iterator[LogPiece]:
    lines: list[str] = []
    for each in found:
        added = [each] if isinstance(each, str) else _lines(piece.source, each, shown)
        if isinstance(each, str) or added != lines[-1:]:  # a DataLoader's has its worker's below it
            lines += added
    if lines:
        content = "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape")
        yield replace(piece, content=content)


def _lines(source: str, found: Traceback, shown: dict[tuple[str, ...], str]) -> list[str]:
    """Return what is printed of a traceback.

    Args:
        shown: The process that each failure was first shown of.
    """
    first = shown.setdefault(found.failure, source) if found.error else source
    if first != source:
        return [f"{found.error.partition(':')[0]}, the same as in {first}"]
    return replace(found, prefix="").short()  # the source names the rank
