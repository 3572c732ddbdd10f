"""Print lines of logs: after their source, in its colour, or as JSON objects."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from dlctl.cli import output
from dlctl.contract.ground.safe_text import printable

if TYPE_CHECKING:
    from dlctl.logs.reader import LogPiece
    from dlctl.logs.shown import ShownLog

_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
"""Of learners and servers, by their number; the job has none."""
_ORDERS = re.compile(r"\x1b\[[0-9;]*m")


class LogLines:
    """How lines of logs are printed.

    Args:
        as_json: as objects, with every byte that is text.
        prefix: each after its source.
        pattern: only lines of which this is found in what is shown.
    """

    def __init__(
        self,
        *,
        as_json: bool = False,
        prefix: bool = True,
        pattern: re.Pattern[str] | None = None,
    ) -> None:
        self._as_json, self._prefix, self._pattern = as_json, prefix, pattern
        self._colours = output.has_colours()
        self._shown: dict[tuple[int, str], ShownLog] = {}
        self.whole = as_json or pattern is not None or bool(os.environ.get("DLCTL_DEBUG"))
        """Whether tracebacks are printed with all their lines."""

    def print(self, piece: LogPiece) -> int:
        """Print the lines of a piece; return their number."""
        from dlctl.logs.matching import FILLER, is_filler
        from dlctl.logs.shown import ShownLog

        key, content = (piece.attempt, piece.source), piece.content
        if self._pattern is not None and FILLER in content:
            kept = [each for each in content.splitlines(keepends=True) if not is_filler(each)]
            content = b"".join(kept)
        if not content:
            return 0
        if key not in self._shown:
            self._shown[key] = ShownLog(self._colours and not self._as_json)
        if self._as_json:
            text = content.decode(errors="replace")
            return self._objects(piece, text.removesuffix("\n").split("\n"))
        return self._write(piece.source, self._shown[key].lines(content))

    def end(self) -> None:
        """Print what is left of lines whose end never came."""
        for (_, source), shown in self._shown.items():
            self._write(source, shown.rest())

    def _fits(self, line: str) -> bool:
        return self._pattern is None or bool(self._pattern.search(_ORDERS.sub("", line)))

    def _write(self, source: str, lines: list[str]) -> int:
        before = self._before(source)
        text = [f"{before}{line}\n" for line in lines if self._fits(line)]
        output.raw("".join(text))
        return len(text)

    def _objects(self, piece: LogPiece, lines: list[str]) -> int:
        from dlctl.logs.shown import shown

        if self._pattern is not None:
            lines = [line for line in lines if self._fits(shown(line, colours=False))]
        output.log_objects(piece.attempt, piece.source, lines)
        return len(lines)

    def _before(self, source: str) -> str:
        if not self._prefix:
            return ""
        number = source.rpartition("-")[2]
        source = printable(source)
        if not self._colours or not number.isdecimal():
            return f"{source} | "
        return f"\033[{_COLOURS[int(number) % len(_COLOURS)]}m{source} |\033[0m "


def print_pieces(pieces: Iterable[LogPiece], lines: LogLines | None = None) -> int:
    """Print pieces of logs; return the number of lines.

    Tracebacks are shortened, unless `--debug`, `--json` or a pattern asks for single lines.
    """
    from dlctl.logs.tracebacks import shortened

    lines = lines or LogLines()
    count = sum(lines.print(piece) for piece in (pieces if lines.whole else shortened(pieces)))
    lines.end()
    return count
