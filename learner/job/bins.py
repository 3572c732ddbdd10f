"""Write bins beside a file of metrics (`dlctl.contract.measured.bins`).

What can't be written is removed, and readers then use the lines.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
from collections.abc import Iterator
from pathlib import Path

from dlctl.contract.ground.whole_files import whole_file
from dlctl.contract.measured.bins import (
    LEAST_LINES,
    LEAST_STRETCHES,
    MOST_BYTES,
    MOST_STRETCHES,
    USUAL_BYTES,
    Series,
    Stretch,
    bins_file,
    decode,
)
from dlctl.contract.metrics import NO_STEP, MetricsLine, Source, parse_line, parse_metrics_name

_FINER = 8
"""How many new stretches make an old one: readers get the lines behind the last stretch."""


class BinsFile:
    """The bins of one file of metrics. If that has lines already, they are made from them."""

    def __init__(self, path: Path) -> None:
        self._path, self._bins = path, path.with_name(bins_file(path.name))
        known = parse_metrics_name(path.name)
        self._is_of_a_node = known is not None and known[2] is Source.NODE  # every line counts
        self._newest: dict[Series, float] = {}
        """The newest step of each series."""
        self._stretch, self._stretches, self._full_lines = Stretch(), 0, LEAST_LINES
        self._broken = False
        with self._safely():
            self._bins.unlink(missing_ok=True)
            with path.open("rb") as file:
                for text in file:
                    self._take(parse_line(text), len(text))

    def add(self, line: MetricsLine, size_bytes: int) -> None:
        """Count a line that was appended to the file of metrics."""
        if not self._broken:
            with self._safely():
                self._take(line, size_bytes)

    def _take(self, line: MetricsLine | None, size_bytes: int) -> None:
        if line is None:
            self._stretch.end += size_bytes
            return
        if not line.event and line.step != NO_STEP and not self._is_of_a_node:
            for name in line.values:
                series = line.series_group, name
                if line.step <= self._newest.get(series, -math.inf):
                    raise ValueError("a series goes back to an earlier step")
                self._newest[series] = line.step
        self._stretch.take(line, size_bytes)
        if self._stretch.lines >= max(LEAST_LINES, self._full_lines // _FINER):
            size = append(self._bins, self._stretch.encode())
            self._stretch = Stretch(self._stretch.end, self._stretch.end)
            self._stretches += 1
            is_large = size > USUAL_BYTES and self._stretches >= 2 * LEAST_STRETCHES
            if is_large or self._stretches >= MOST_STRETCHES:
                self._join()

    def _join(self) -> None:
        """Join old stretches until half of the room is free; new ones stay finer for a while."""
        known = decode(self._bins.read_bytes())
        size = self._bins.stat().st_size
        while len(known) > MOST_STRETCHES // 2 or (
            size > USUAL_BYTES // 2 and len(known) > LEAST_STRETCHES
        ):
            self._full_lines *= 2
            joined = known[:1]
            for stretch in known[1:]:
                if joined[-1].lines + stretch.lines <= self._full_lines:
                    joined[-1].join(stretch)
                else:
                    joined.append(stretch)
            known, size = joined, sum(len(stretch.encode()) for stretch in joined)
        if size > MOST_BYTES // 2:  # fewer stretches would show no curve
            raise ValueError("there are too many series")
        with whole_file(self._bins, sync=False) as file:
            file.write(b"".join(stretch.encode() for stretch in known))
        self._stretches = len(known)

    @contextlib.contextmanager
    def _safely(self) -> Iterator[None]:
        """Remove what there is after an error: bins that lack points would pass for the curve."""
        try:
            yield
        except (OSError, ValueError, ArithmeticError, LookupError):
            self._broken = True
            with contextlib.suppress(OSError):
                self._bins.unlink(missing_ok=True)


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
