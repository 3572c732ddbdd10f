"""Write what speeds up drawing beside a file of metrics (`dlctl.contract.measured.pyramid`).

What can't be written is removed, and readers then use the lines.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
from collections.abc import Iterator
from pathlib import Path

from dlctl.contract.measured import pyramid
from dlctl.contract.measured.pyramid import (
    INDEX_EVERY,
    LEVELS,
    MOST_SERIES,
    POINTS_BYTES,
    RECORD_BYTES,
    SHAPES,
    Bin,
    Named,
)
from dlctl.contract.metrics import NO_STEP, MetricsLine, Source, parse_line, parse_metrics_name

_LINES_AT_ONCE = 16


class PyramidFiles:
    """The files beside one file of metrics. If that has lines already, they are made from them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._series: dict[tuple[str, str], int] = {}
        self._shapes: list[int] = []
        """Of each series."""
        self._points_bytes = [0] * SHAPES
        """How much of level 0 each shape has."""
        self._last: list[float] = []
        """The newest step of each series."""
        known = parse_metrics_name(path.name)
        self._is_of_a_node = known is not None and known[2] is Source.NODE  # every line counts
        self._shape_count = self._lines = self._offset = 0
        self._waiting: dict[str, bytearray] = {}
        self._builder = pyramid.Builder(self._full)
        self._broken = False
        with self._safely():
            self._begin()

    def add(self, line: MetricsLine, size_bytes: int) -> None:
        """Count a line that was appended to the file of metrics."""
        if not self._broken:
            with self._safely():
                self._take(line, size_bytes)
                # Few writes: what a killed process did not write, readers find in the last lines.
                if self._lines % _LINES_AT_ONCE == 0 or line.event:
                    self._write()

    def _begin(self) -> None:
        if not self._path.exists() or self._path.stat().st_size == 0:
            return
        self._remove()
        with self._path.open("rb") as file:
            for text in file:
                if (line := parse_line(text)) is not None:
                    self._take(line, len(text))
                else:
                    self._offset += len(text)
        self._write()

    def _take(self, line: MetricsLine, size_bytes: int) -> None:
        begin, self._offset = self._offset, self._offset + size_bytes
        if line.event:
            self._wait("events", line.encode())
            return
        if self._lines % INDEX_EVERY == 0:
            self._wait("index", pyramid.encode_index(float(line.step), begin))
        self._lines += 1
        time = math.nan if line.time is None else line.time
        fresh = len(self._series)
        for name, value in line.values.items():
            series = self._number(line.series_group, name)
            number = math.nan if value is None else float(value)
            self._point(pyramid.point(series, float(line.step), time, number))
        if len(self._series) > fresh:
            self._shape_count = min(SHAPES, self._shape_count + 1)

    def _number(self, group: str, name: str) -> int:
        found = self._series.get((group, name))
        if found is None:
            if len(self._series) == MOST_SERIES:
                raise ValueError("there are too many series")
            found = self._series[group, name] = len(self._series)
            shape = min(SHAPES - 1, self._shape_count)
            self._shapes.append(shape)
            self._last.append(-math.inf)
            self._wait("series", Named(group, name, shape).encode())
        return found

    def _point(self, point: Bin) -> None:
        step, before = point.step_last, self._last[point.series]
        if step <= before and step != NO_STEP and not self._is_of_a_node:
            raise ValueError("a series goes back to an earlier step")
        self._last[point.series] = step
        shape = self._shapes[point.series]
        if self._points_bytes[shape] < POINTS_BYTES:
            self._points_bytes[shape] += RECORD_BYTES
            self._full(0, point)
        self._builder.add_bin(point.series, point)

    def _full(self, level: int, full: Bin) -> None:
        self._wait(f"{self._shapes[full.series]}.k{level}", full.encode())

    def _wait(self, what: str, content: bytes) -> None:
        self._waiting.setdefault(what, bytearray()).extend(content)

    def _write(self) -> None:
        for what, content in self._waiting.items():
            append(self._path.with_name(pyramid.side_file(self._path.name, what)), content)
        self._waiting.clear()

    def _remove(self) -> None:
        whats = ["series", "index", "events"]
        whats += [f"{shape}.k{k}" for shape in range(SHAPES) for k in (0, *LEVELS)]
        for what in whats:
            path = self._path.with_name(pyramid.side_file(self._path.name, what))
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _safely(self) -> Iterator[None]:
        """Remove what there is after an error: bins that lack points would pass for the curve."""
        try:
            yield
        except (OSError, ValueError, ArithmeticError, LookupError):
            self._broken = True
            self._waiting.clear()
            with contextlib.suppress(OSError):
                self._remove()


def append(path: Path, data: bytes | bytearray) -> int:
    """Append to a file, all or nothing: nobody else writes there; return the file's size.

    Raises:
        OSError: the disk is full, or can't be written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        if (written := os.write(descriptor, data)) < len(data):
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
