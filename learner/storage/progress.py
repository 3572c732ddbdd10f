"""How far a transfer is, as one sentence in a file that the supervisor reads."""

from __future__ import annotations

import threading
import time
from collections import deque
from pathlib import Path

_EVERY_S = 0.5
_WINDOW_S = 10.0
_UNITS = ("B", "kB", "MB", "GB", "TB")


class Progress:
    """Bytes, rate and time left of one store's transfer; all its threads may call it.

    Args:
        file: The sentence's file; None: nobody reads it.
        what: The sentence's beginning.
    """

    def __init__(self, file: Path | None, what: str) -> None:
        self._file = file
        self._what = what
        self._total = self._done = 0
        self._seen: deque[tuple[float, int]] = deque()
        self._due = 0.0
        self._lock = threading.Lock()

    def begin(self, total_bytes: int) -> None:
        """Set how much there is to move."""
        with self._lock:
            self._total, self._done = total_bytes, 0
            self._seen.append((time.monotonic(), 0))
            self._tell()

    def add(self, size_bytes: int) -> None:
        """Note that so much more has moved."""
        with self._lock:
            self._done += size_bytes
            self._tell()

    def wait(self, host: str) -> None:
        """Say that another process fetches the same data."""
        with self._lock:
            self._tell(f"{self._what}: waiting for {host}, which fetches the same data")

    def notice(self, fault: str) -> None:
        """Say that a request failed and will be repeated."""
        self.say(f"{self._what}: {fault}; trying again")

    def say(self, text: str) -> None:
        """Write a sentence now."""
        with self._lock:
            self._due = 0.0
            self._tell(text)

    def _tell(self, text: str = "") -> None:
        now = time.monotonic()
        if now < self._due or self._file is None:
            return
        self._due = now + _EVERY_S
        self._seen.append((now, self._done))
        while now - self._seen[0][0] > _WINDOW_S:
            self._seen.popleft()
        new = self._file.with_name(f".{self._file.name}.new")
        new.write_text(f"{text or self._sentence(now)}\n")
        new.replace(self._file)

    def _sentence(self, now: float) -> str:
        then, before = self._seen[0]
        text = f"{self._what}: {size_text(self._done)} of {size_text(self._total)}"
        if now - then < 1.0 or self._done == before:
            return text
        rate = (self._done - before) / (now - then)
        left_s = (self._total - self._done) / rate
        left = f"{left_s:.0f} s" if left_s < 90 else f"{left_s / 60:.0f} min"
        return f"{text}, {size_text(rate)}/s, {left} left"


def size_text(size_bytes: float) -> str:
    """Return a size in decimal units, with three digits."""
    value, unit = float(size_bytes), 0
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.3g} {_UNITS[unit]}"
