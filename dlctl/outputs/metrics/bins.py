"""Open a long file of metrics by its bins: kilobytes instead of the whole file.

The bins of one level, the newest of the levels below it, and the last lines make up each curve. A
window is refined by the bins of a finer level there, or by its lines.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dlctl.contract.measured.pyramid import (
    INDEX_BYTES,
    INDEX_EVERY,
    LEVELS,
    POINTS_BYTES,
    RECORD_BYTES,
    SHAPES,
    Bin,
    Named,
    decode,
    decode_index,
    decode_names,
    level_file,
    point,
    side_file,
)
from dlctl.contract.metrics import MetricsLine, parse_lines
from dlctl.files.ranges import Range, read_ranges
from dlctl.outputs.metrics.cache import Part

if TYPE_CHECKING:
    from dlctl.transport import Transport

LONG_BYTES = 16 * 1024 * 1024
"""A longer file is opened by its bins; up to it every point is read."""
TAIL_BYTES = 16 * 1024
_TAIL_LINES = 48
"""Up to 32 lines may be in no bin of level 4 yet. The last lines may be longer than the mean."""
_TAIL_BINS_BYTES = 8 * 1024
"""Of each level below the chosen one, before the bins that the level above does not cover."""
_LAST_LINES_BYTES = 256 * 1024
"""Behind the index's last record."""
_MOST_LINES_BYTES = 8 * 1024 * 1024
_ALL = 1 << 40


@dataclass
class LongFile:
    """One long file of metrics and what was read of it."""

    name: str
    size_bytes: int
    levels: dict[int, int] = field(default_factory=dict)
    """The level that was read of each shape."""
    names: list[Named] = field(default_factory=list)
    events: list[MetricsLine] = field(default_factory=list)
    bins: dict[int, list[Bin]] = field(default_factory=dict)
    """By series."""
    pieces: list[bytes] = field(default_factory=list)
    """Lines that were read to fill what is missing where attempts meet."""
    tail: bytes = b""
    """The file's last lines, and the part of a line before them."""
    index: list[tuple[float, int]] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    """As they were read."""
    full_until: dict[int, float] = field(default_factory=dict)
    """By shape: the last step of the bins of its level; behind it there are finer ones already."""
    in_vain: set[tuple[int, int, float, float]] = field(default_factory=set)
    """Windows for which nothing finer was there: shape, level, first and last step."""

    def covered(self, line: MetricsLine) -> MetricsLine:
        """Return a line of the tail without the values that are in bins."""
        last = {
            (self.names[s].group, self.names[s].name): bins[-1]
            for s, bins in self.bins.items() if bins and s < len(self.names)
        }  # fmt: skip
        time = math.nan if line.time is None else line.time
        values = {
            name: value for name, value in line.values.items()
            if (before := last.get((line.series_group, name))) is None
            or _is_later(before, line.step, time)
        }  # fmt: skip
        return replace(line, values=values)


def is_long(name: str, sizes: Mapping[str, int], known_bytes: int = 0) -> bool:
    """Return whether so much of a file is unknown that it is to be opened by its bins.

    A file of few lines, each of very many values, is none.
    """
    return sizes[name] - known_bytes > LONG_BYTES and _least_lines(name, sizes) > 0


def _least_lines(name: str, sizes: Mapping[str, int]) -> int:
    """Return how many lines a file has at least, by its index; 0 if it has no bins."""
    if not sizes.get(side_file(name, "series")):
        return 0
    return max(0, sizes.get(side_file(name, "index"), 0) // INDEX_BYTES - 1) * INDEX_EVERY


def open_long(
    transport: Transport, folder: str, names: Iterable[str], sizes: Mapping[str, int],
    budget_bytes: int,
) -> dict[str, LongFile]:  # fmt: skip
    """Return what shows the curves of some files, read in one round trip.

    Args:
        budget_bytes: of the bins of each shape, before compression.

    Raises:
        TransportError
    """
    wanted: list[tuple[str, str, int, int, Range]] = []
    for name in names:
        for what in ("series", "events"):
            wanted.append((name, what, 0, 0, Range(side_file(name, what), 0, _ALL)))
        for shape in range(SHAPES):
            above, end = 0, 0
            for k in _chosen(name, shape, sizes, budget_bytes):
                level = level_file(name, shape, k)
                # Each bin of the level above is the sum of so many of this level.
                begin = max(0, (end << (above - k)) - _TAIL_BINS_BYTES) if above else 0
                begin -= begin % RECORD_BYTES
                wanted.append((name, "bins", shape, k, Range(level, begin, _ALL)))
                above, end = k, sizes[level]
        tail_bytes = _TAIL_LINES * sizes[name] // _least_lines(name, sizes)
        begin = max(0, sizes[name] - max(tail_bytes, TAIL_BYTES))
        wanted.append((name, "tail", 0, 0, Range(name, begin, sizes[name] - begin)))
    contents = read_ranges(transport, folder, [each[-1] for each in wanted])
    parts: dict[str, list[Part]] = {}
    for (name, what, shape, k, _), content in zip(wanted, contents, strict=True):
        parts.setdefault(name, []).append((what, shape, k, content))
    return {name: assembled(name, sizes[name], mine) for name, mine in parts.items()}


def assembled(name: str, size_bytes: int, parts: list[Part]) -> LongFile:
    """Return a long file of what was read of it."""
    file = LongFile(name, size_bytes, parts=parts)
    for what, shape, k, content in parts:
        _take(file, what, content)
        if what == "bins" and k == file.levels.setdefault(shape, k):
            ends = [bins[-1].step_last for s, bins in file.bins.items()
                    if s < len(file.names) and file.names[s].shape == shape]  # fmt: skip
            file.full_until[shape] = min(ends, default=-math.inf)
    return file


def _chosen(name: str, shape: int, sizes: Mapping[str, int], budget_bytes: int) -> list[int]:
    """Return the level to read of a shape, and those below it whose newest bins are needed."""
    there = [k for k in (0, *LEVELS) if sizes.get(level_file(name, shape, k), 0) > 0]
    if not there:
        return []
    complete = [k for k in there if k or sizes[level_file(name, shape, 0)] < POINTS_BYTES]
    fitting = [k for k in complete if sizes[level_file(name, shape, k)] <= budget_bytes]
    top = (fitting or complete)[0 if fitting else -1]
    return [top, *(k for k in reversed(complete) if k < top)]


def _take(file: LongFile, what: str, content: bytes) -> None:
    if what == "series":
        file.names = decode_names(content)
    elif what == "events":
        file.events = list(parse_lines(content))
    elif what == "tail":
        file.tail = content
    elif what == "lines":
        file.pieces.append(content)
    else:
        _take_bins(file, decode(content))


def _take_bins(file: LongFile, bins: Iterable[Bin]) -> None:
    """Take in bins of a level, of which those that the levels above cover are left out."""
    for bin_ in bins:
        mine = file.bins.setdefault(bin_.series, [])
        if not mine or _is_later(mine[-1], bin_.step_first, bin_.time_last):
            mine.append(bin_)


def is_fine(file: LongFile, begin: float, end: float, width: int) -> bool:
    """Return whether nothing is gained by refining a window of steps."""
    return not any(_coarse(file, begin, end, width))


@dataclass(frozen=True)
class _Window:
    """Bins of the first series of a shape that are to be refined."""

    shape: int
    level: int
    """Of the bins that are fine enough; 0: the points."""
    bins: list[Bin]
    points: int

    @property
    def place(self) -> tuple[int, int, float, float]:
        return self.shape, self.level, self.bins[0].step_first, self.bins[-1].step_last


def _coarse(file: LongFile, begin: float, end: float, width: int) -> Iterator[_Window]:
    """Yield the parts of a window that have too few bins.

    Behind the last full bin of a shape's level there are bins of several levels: lines refine them.
    """
    for shape in file.levels:
        first = next((s for s, n in enumerate(file.names) if n.shape == shape), None)
        known = [] if first is None else _known(file.bins.get(first, []), begin, end)
        until = file.full_until.get(shape, math.inf)
        for is_full in (True, False):
            bins = [b for b in known if (b.step_first <= until) == is_full]
            points = sum(b.count for b in bins)
            if bins and len(bins) < min(width, points):
                fitting = (k for k in LEVELS if points >> k >= width)
                level = max(fitting, default=0) if is_full else 0
                window = _Window(shape, level, bins, points)
                if window.place not in file.in_vain:
                    yield window


def _is_later(before: Bin, step: float, time: float) -> bool:
    """Return whether a point or bin comes after a bin: steps may stay, be unknown or go back."""
    return step > before.step_last or time > before.time_last


def refine(
    transport: Transport, folder: str, file: LongFile, begin: float, end: float, width: int
) -> dict[Named, list[list[Bin]]]:
    """Return finer bins of parts of a window of steps, of each series for which there are any.

    Those of a part cover whole bins of those that are known.

    Raises:
        TransportError
    """
    found: dict[Named, list[list[Bin]]] = {}
    for window in list(_coarse(file, begin, end, width)):
        shape, _, first, last = window.place
        members = [s for s, n in enumerate(file.names) if n.shape == shape]
        for fresh in _finer(transport, folder, file, window):
            fitting = {s: [b for b in fresh.get(s, []) if first <= b.step_first <= last]
                       for s in members}  # fmt: skip
            known = {s: _known(file.bins.get(s, []), first, last) for s in members}
            covering = [s for s in members if _covers(fitting[s], known[s])]
            for series in covering:
                found.setdefault(file.names[series], []).append(fitting[series])
                _splice(known[series], fitting[series])
            if covering:
                break
        file.in_vain.add(window.place)  # a window that was refined has other bins
    return found


def _finer(
    transport: Transport, folder: str, file: LongFile, window: _Window
) -> Iterator[dict[int, list[Bin]]]:
    """Yield what may refine a window, the best first: points of level 0, of lines, or bins."""
    yield _from_level(transport, folder, file, window, window.level)
    if window.level == 0:
        _, _, first, last = window.place
        yield points_of(file, _lines(transport, folder, file, first, last))
        yield _from_level(transport, folder, file, window, LEVELS[0])


def _known(bins: list[Bin], begin: float, end: float) -> list[Bin]:
    return [b for b in bins if b.step_last >= begin and b.step_first <= end]


def _covers(finer: list[Bin], known: list[Bin]) -> bool:
    """Return whether finer bins hold the same points as the known ones."""
    return len(finer) > len(known) and sum(b.count for b in finer) == sum(b.count for b in known)


def _splice(bins: list[Bin], finer: list[Bin]) -> None:
    first, last = finer[0].step_first, finer[-1].step_last
    at = next(i for i, b in enumerate(bins) if b.step_first >= first)
    end = next((i for i, b in enumerate(bins) if b.step_first > last), len(bins))
    bins[at:end] = finer


def _from_level(
    transport: Transport, folder: str, file: LongFile, window: _Window, k: int
) -> dict[int, list[Bin]]:
    """Read the bins of a window, and some around it: series may differ a little in their points."""
    shape, _, first, _ = window.place
    members = [s for s, n in enumerate(file.names) if n.shape == shape]
    before = sum(b.count for b in file.bins[members[0]] if b.step_last < first)
    per_bin = RECORD_BYTES * len(members)
    begin = max(0, (before >> k) - 8) * per_bin
    length = ((window.points >> k) + 24) * per_bin
    wanted = Range(level_file(file.name, shape, k), begin, length)
    (content,) = read_ranges(transport, folder, [wanted])
    found: dict[int, list[Bin]] = {}
    for bin_ in decode(content):
        found.setdefault(bin_.series, []).append(bin_)
    return found


def read_piece(
    transport: Transport, folder: str, file: LongFile, first: float, last: float
) -> None:
    """Add the lines of some steps, which no bins cover, to the pieces of a file.

    Raises:
        TransportError
    """
    content = _lines(transport, folder, file, first, last)
    file.pieces.append(content)
    file.parts.append(("lines", 0, 0, content))


def _lines(transport: Transport, folder: str, file: LongFile, first: float, last: float) -> bytes:
    """Return the lines of some steps, and some around them; nothing if they are too many."""
    if not file.index:
        name = side_file(file.name, "index")
        (content,) = read_ranges(transport, folder, [Range(name, 0, INDEX_BYTES << 20)])
        file.index = decode_index(content)
    begin = max((offset for step, offset in file.index if step <= first), default=0)
    end = min(
        (offset for step, offset in file.index if step > last), default=begin + _LAST_LINES_BYTES
    )
    if end - begin > _MOST_LINES_BYTES:
        return b""
    (content,) = read_ranges(transport, folder, [Range(file.name, begin, end - begin)])
    return content


def points_of(file: LongFile, content: bytes) -> dict[int, list[Bin]]:
    """Return the points of each series in some lines of a file."""
    numbers = {(n.group, n.name): series for series, n in enumerate(file.names)}
    found: dict[int, list[Bin]] = {}
    for line in parse_lines(content):
        if line.event:
            continue
        for name, value in line.values.items():
            if (series := numbers.get((line.series_group, name))) is not None:
                number = math.nan if value is None else float(value)
                time = math.nan if line.time is None else line.time
                found.setdefault(series, []).append(point(series, line.step, time, number))
    return found
