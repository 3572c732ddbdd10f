"""Small files of the kernel, read again and again through one open handle; rates of counters."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

_MOST_BYTES = 64 * 1024


class KernelFile:
    """A file below /proc or /sys that stays open. Raises OSError if it can't be opened."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> bytes:
        """Return the current content; raises OSError if what it describes has ended."""
        return os.pread(self._descriptor, _MOST_BYTES, 0)

    def close(self) -> None:
        """Close the handle."""
        with contextlib.suppress(OSError):
            os.close(self._descriptor)


def open_file(path: Path) -> KernelFile | None:
    """Return a file, or None if it can't be read."""
    try:
        return KernelFile(path)
    except OSError:
        return None


def read_number(file: KernelFile | None) -> int | None:
    """Return the number in a file; None if there is none."""
    if file is None:
        return None
    try:
        return int(file.read())
    except (OSError, ValueError):
        return None


def counters(file: KernelFile | None, separator: bytes = b":") -> dict[bytes, int]:
    """Return the numbers of a file with a name and a number on each line."""
    if file is None:
        return {}
    found = {}
    try:
        for line in file.read().splitlines():
            name, _, number = line.partition(separator)
            with contextlib.suppress(ValueError):
                found[name] = int(number)
    except OSError:
        return {}
    return found


class Rates:
    """Rates per second of counters, between one call and the next."""

    def __init__(self) -> None:
        self._before: dict[str, float] = {}
        self._at = 0.0

    def read(self, now: float, totals: Mapping[str, float]) -> dict[str, float]:
        """Return the rate of each counter that was there at the last call, too.

        Args:
            now: seconds on a clock that never goes back.
        """
        elapsed_s = now - self._at
        found = {}
        if self._before and elapsed_s > 0:
            # A counter falls if a process has ended whose numbers nobody took over.
            found = {
                name: max(0.0, total - self._before[name]) / elapsed_s
                for name, total in totals.items() if name in self._before
            }  # fmt: skip
        self._before, self._at = dict(totals), now
        return found
