"""A canvas of dots, two across and four down in each character (Unicode's braille patterns)."""

from __future__ import annotations

from collections.abc import Sequence

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_MASKS = [
    [[sum(_DOTS[y][side] for y in range(top, bottom + 1)) for bottom in range(4)]
     for top in range(4)]
    for side in range(2)
]  # fmt: skip
"""The dots of a part of a character's column, by side, first and last dot."""
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

    def column(self, x: int, top: int, bottom: int, colour: int) -> None:
        """Draw a vertical line, a character at a time."""
        top, bottom = max(0, top), min(self.height - 1, bottom)
        if not 0 <= x < self.width or top > bottom:
            return
        place, masks = x >> 1, _MASKS[x & 1]
        begin, end = top >> 2, bottom >> 2
        for row in range(begin, end + 1):
            mask = masks[top & 3 if row == begin else 0][bottom & 3 if row == end else 3]
            self._dots[row][place] |= mask
            self._colours[row][place] = colour

    def cells(self) -> Sequence[Sequence[tuple[str, int]]]:
        """Return each row's characters with their colours; 0 is none, and a blank is a space."""
        return [
            [(chr(_BLANK + dots) if dots else " ", colour)
             for dots, colour in zip(row, colours, strict=True)]
            for row, colours in zip(self._dots, self._colours, strict=True)
        ]  # fmt: skip
