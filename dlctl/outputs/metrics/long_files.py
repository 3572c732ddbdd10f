"""Open a long file of metrics by its bins: kilobytes instead of the whole file.

The bins, and the lines behind them, make up each curve. A window is refined by its lines.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dlctl.contract.measured.bins import (
    MOST_BYTES,
    Bin,
    Series,
    Stretch,
    bins_file,
    decode,
    points_of,
)
from dlctl.contract.metrics import parse_lines
from dlctl.files.small_files import read_appended

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dlctl.transport import Transport

LONG_BYTES = 16 * 1024 * 1024
"""Files with more behind what is known are opened by their bins; otherwise every line is read."""
_MOST_LINES_BYTES = 16 * 1024 * 1024
"""A window with more of one file stays as it is."""


@dataclass
class LongFile:
    """One long file of metrics, as its bins show it."""

    name: str
    content: bytes
    """That of the file of bins."""
    stretches: list[Stretch] = field(init=False)
    unread: list[Stretch] = field(init=False)
    """Those of which no lines were read."""

    def __post_init__(self) -> None:
        self.stretches = decode(self.content)
        self.unread = list(self.stretches)

    @property
    def end(self) -> int:
        """Return the offset of the first line that is in no bin."""
        return self.stretches[-1].end if self.stretches else 0

    def series(self) -> dict[Series, list[Bin]]:
        """Return the bins of each series."""
        found: dict[Series, list[Bin]] = {}
        for stretch in self.stretches:
            for name, bin_ in stretch.series.items():
                found.setdefault(name, []).append(bin_)
        return found

    def coarse(self, first: float, last: float, width: float) -> list[Stretch]:
        """Return the stretches in a window of steps, if their lines show more and are not too many.

        Args:
            width: how many bins are enough.
        """
        found = [stretch for stretch in self.unread if stretch.spans(first, last)]
        is_worth_it = found and len(found) < width
        return found if is_worth_it and _size_bytes(found) <= _MOST_LINES_BYTES else []


def open_long(
    transport: Transport, folder: str, known: Mapping[str, int] | None = None
) -> list[LongFile]:
    """Return the files of metrics that are long, by one round trip.

    Args:
        known: how much is known of each that is asked for; None: nothing, of all.

    Raises:
        TransportError
    """
    globs = ["*.bins"] if known is None else [bins_file(name) for name in known]
    found = read_appended(transport, folder, globs, {}, MOST_BYTES)
    files = [LongFile(f"{name.removesuffix('.bins')}.jsonl", c) for name, c in found.items()]
    return [each for each in files if each.end - (known or {}).get(each.name, 0) > LONG_BYTES]


def read_points(
    transport: Transport, folder: str, file: LongFile, stretches: list[Stretch]
) -> dict[Series, list[Bin]]:
    """Return the points of some successive stretches, by series.

    Raises:
        TransportError
    """
    begin = stretches[0].begin
    read = read_appended(transport, folder, [file.name], {file.name: begin}, _size_bytes(stretches))
    found: dict[Series, list[Bin]] = {}
    for line in parse_lines(read.get(file.name, b"")):
        for name, point in points_of(line).items() if not line.event else ():
            found.setdefault(name, []).append(point)
    ends = {stretch.end for stretch in stretches}
    file.unread = [stretch for stretch in file.unread if stretch.end not in ends]
    return found


def _size_bytes(stretches: list[Stretch]) -> int:
    return stretches[-1].end - stretches[0].begin
