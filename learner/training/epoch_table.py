"""The table that the built-in loop prints: a line for each epoch, as wide as a terminal."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dlctl.contract.metrics import LOSS, SAMPLES_PER_S
from learner.job.metrics import short_number

_WIDTH = 80 - len("learner-0 | ")
_HEADER_EVERY = 20
_LEFT = "left"
_VALUE_WIDTH = 8
_VALIDATION = "validation_"


class EpochTable:
    """Formats one line an epoch, with a header every 20 lines.

    Metrics that don't fit are left out: `dlctl show` prints them.

    Args:
        epochs: Of the whole training.
        names: The loss and the user's metrics.
        validated: Whether there is validation data.
    """

    def __init__(
        self,
        epochs: int,
        names: Sequence[str],
        *,
        validated: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._epochs = epochs
        self._validated = validated
        self._judged = _VALIDATION + LOSS if validated else LOSS
        self._first_width = len(f"epoch {epochs}/{epochs}")
        self._columns = self._choose([*names])
        self._clock = clock
        self._lines = 0
        self._first_epoch, self._began_at = 0, clock()

    def begin(self, epoch: int) -> None:
        """Start the clock of the time left, with so many epochs done."""
        self._first_epoch, self._began_at = epoch, self._clock()

    def lines(self, epoch: int, history: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return the line of the newest epoch in a history, below a header if one is due."""
        row = [f"epoch {epoch}/{self._epochs}".ljust(self._first_width)]
        for name in self._columns:
            row.append(self._cell(name, history).rjust(self._width(name)))
        row.append(self._time_left(epoch).rjust(_VALUE_WIDTH))
        lines = ["  ".join(row).rstrip()]
        if self._lines % _HEADER_EVERY == 0:
            lines.insert(0, self._header())
        if self._lines == 0:
            lines.insert(0, f"* marks the best {_title(self._judged)} so far")
        self._lines += 1
        return lines

    def _choose(self, names: list[str]) -> list[str]:
        """Return the values that fit between the epoch and the time left, in order."""
        wanted = []
        for name in names:
            wanted += [name, _VALIDATION + name] if self._validated else [name]
        room, chosen = _WIDTH - self._first_width - 2 - _VALUE_WIDTH, list[str]()
        for name in [*wanted, SAMPLES_PER_S]:
            if (width := self._width(name) + 2) <= room:
                chosen.append(name)
                room -= width
        return chosen

    def _width(self, name: str) -> int:
        return max(len(_title(name)), _VALUE_WIDTH) + (name == self._judged)  # for the mark

    def _header(self) -> str:
        cells = ["".ljust(self._first_width)]
        for name in self._columns:
            title = _title(name) + (" " if name == self._judged else "")
            cells.append(title.rjust(self._width(name)))
        return "  ".join([*cells, _LEFT.rjust(_VALUE_WIDTH)])

    def _cell(self, name: str, history: Sequence[Mapping[str, Any]]) -> str:
        value = history[-1].get(name)
        text = "-" if value is None else short_number(value)
        text = text if len(text) <= _VALUE_WIDTH else f"{value:.1e}"
        if name != self._judged:
            return text
        earlier = (past.get(name) for past in history[:-1])
        known = [number for number in earlier if number is not None and math.isfinite(number)]
        best = value is not None and math.isfinite(value) and all(value < past for past in known)
        return f"{text}{'*' if best else ' '}"

    def _time_left(self, epoch: int) -> str:
        done = epoch - self._first_epoch
        if done <= 0:
            return "-"
        return duration((self._clock() - self._began_at) / done * (self._epochs - epoch))


def _title(name: str) -> str:
    if name == SAMPLES_PER_S:
        return "samples/s"
    return f"val {name.removeprefix(_VALIDATION)}" if name.startswith(_VALIDATION) else name


def duration(seconds: float) -> str:
    """Return seconds as `12s`, `3m20s`, `1h05m` or `2d03h`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}h{minutes:02d}m" if hours < 48 else f"{hours // 24}d{hours % 24:02d}h"
