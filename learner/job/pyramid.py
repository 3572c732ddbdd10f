"""Write the bins of a file of metrics beside it (`dlctl.contract.pyramid`).

Bins only speed up drawing: what can't be written is left out, and readers then use the lines.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

from dlctl.contract import pyramid
from dlctl.contract.metrics import MetricsLine, parse_line

_MOST_SERIES = 4096
"""Further ones get no bins."""


class PyramidFiles:
    """The files of one file of metrics. If that has lines already, the bins are built from them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._series: dict[tuple[str, str], int] = {}
        self._waiting: dict[int, bytearray] = {}
        self._builder = pyramid.Builder(self._full)
        self._broken = False
        self._begin()

    def add(self, line: MetricsLine) -> None:
        """Count a line that was appended to the file of metrics."""
        if self._broken or line.event:
            return
        try:
            self._take(line)
            self._write()
        except OSError:
            self._give_up()

    def _begin(self) -> None:
        try:
            if not self._path.exists() or self._path.stat().st_size == 0:
                return
            self._remove()
            with self._path.open("rb") as file:
                for text in file:
                    if (line := parse_line(text)) is not None and not line.event:
                        self._take(line)
            self._write()
        except OSError:
            self._give_up()

    def _take(self, line: MetricsLine) -> None:
        time = math.nan if line.time is None else line.time
        for name, value in line.values.items():
            series = self._number(line.group, name)
            if series is not None:
                number = math.nan if value is None else float(value)
                self._builder.add(series, float(line.step), time, number)

    def _number(self, group: str, name: str) -> int | None:
        found = self._series.get((group, name))
        if found is None and len(self._series) < _MOST_SERIES:
            found = self._series[group, name] = len(self._series)
            self._append(pyramid.names_file(self._path.name), pyramid.encode_name(group, name))
        return found

    def _full(self, level: int, full: pyramid.Bin) -> None:
        self._waiting.setdefault(level, bytearray()).extend(full.encode())

    def _write(self) -> None:
        for level, content in self._waiting.items():
            self._append(pyramid.level_file(self._path.name, level), bytes(content))
        self._waiting.clear()

    def _append(self, name: str, content: bytes) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        descriptor = os.open(self._path.with_name(name), flags, 0o666)
        try:
            if os.write(descriptor, content) < len(content):
                raise OSError("a part could not be written")
        finally:
            os.close(descriptor)

    def _give_up(self) -> None:
        """Remove what there is: readers would take bins that lack points for the whole curve."""
        self._broken = True
        self._waiting.clear()
        try:
            self._remove()
        except OSError:
            return

    def _remove(self) -> None:
        self._path.with_name(pyramid.names_file(self._path.name)).unlink(missing_ok=True)
        for level in pyramid.LEVELS:
            path = self._path.with_name(pyramid.level_file(self._path.name, level))
            path.unlink(missing_ok=True)
