"""Shorten the tracebacks in a training's logs, and show one that several learners share once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from dlctl.contract.programs.tracebacks import Traceback, TracebackReader
from dlctl.logs.reader import LogPiece


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
        told = [each] if isinstance(each, str) else _lines(piece.source, each, shown)
        if isinstance(each, str) or told != lines[-1:]:  # a DataLoader's has its worker's below it
            lines += told
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
