"""A canvas of dots, two across and four down in each character (Unicode's braille patterns)."""

from __future__ import annotations

from collections.abc import Sequence

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_BLANK = 0x2800


class Canvas:
    """Dots with a colour each character; the last one drawn wins.

    Args:
        columns, rows: in characters.
    """

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.width, self.height = 2 * columns, 4 * rows
        self._dots = [[0] * columns for _ in range(rows)]
        self._colours = [[0] * columns for _ in range(rows)]

    def dot(self, x: int, y: int, colour: int) -> None:
        """Set a dot; (0, 0) is at the top left. Dots outside are left out."""
        if 0 <= x < self.width and 0 <= y < self.height:
            row, column = y >> 2, x >> 1
            self._dots[row][column] |= _DOTS[y & 3][x & 1]
            self._colours[row][column] = colour

    def column(self, x: int, top: int, bottom: int, colour: int) -> None:
        """Draw a vertical line."""
        for y in range(max(0, top), min(self.height - 1, bottom) + 1):
            self.dot(x, y, colour)

    def cells(self) -> Sequence[Sequence[tuple[str, int]]]:
        """Return each row's characters with their colours; 0 is none, and a blank is a space."""
        return [
            [(chr(_BLANK + dots) if dots else " ", colour)
             for dots, colour in zip(row, colours, strict=True)]
            for row, colours in zip(self._dots, self._colours, strict=True)
        ]  # fmt: skip
