"""Samples what a learner uses, and writes a line of mean and maximum now and then."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from dlctl.contract.measured.utilisation import WITHOUT_MAXIMUM, maximum
from dlctl.contract.metrics import NO_STEP, MetricsLine
from learner.collect.usage.gpu import Gpus
from learner.collect.usage.totals import Totals

SAMPLE_EVERY_S = 2.0
SAMPLES_OF_A_LINE = 5


class Probe(Protocol):
    """One thing that is measured."""

    def sample(self) -> dict[str, float]:
        """Return the values now."""


class Sampler:
    """Asks all probes; writes a line after each `SAMPLES_OF_A_LINE` samples.

    Args:
        progress: the learner's progress file, for its step and epoch.
        totals: counts the lines, too.
    """

    def __init__(
        self,
        probes: Sequence[Probe],
        write: Callable[[MetricsLine], None],
        progress: Path | None = None,
        clock: Callable[[], float] = time.time,
        totals: Totals | None = None,
    ) -> None:
        self._probes, self._write, self._progress, self._clock = probes, write, progress, clock
        self._totals = totals
        self._window = Window()
        self._samples = 0

    def sample(self) -> None:
        """Take a sample."""
        for probe in self._probes:
            self._window.add(probe.sample())
        self._samples += 1
        if self._samples >= SAMPLES_OF_A_LINE:
            self.flush()

    def flush(self) -> None:
        """Write what was sampled since the last line."""
        self._samples = 0
        if values := self._window.take():
            step, epoch = read_progress(self._progress)
            texts: dict[str, str] = {}
            for probe in self._probes:
                if isinstance(probe, Gpus):
                    texts |= probe.texts()
            now = round(self._clock(), 3)
            self._write(MetricsLine(step, epoch, now, dict(values), texts=texts))
            if self._totals is not None:
                self._totals.add(values)

    def finish(self) -> None:
        """Write what is left."""
        self.flush()
        if self._totals is not None:
            self._totals.write()


def read_progress(path: Path | None) -> tuple[int, int | None]:
    """Return step and epoch of a progress file, as far as they are known."""
    if path is None:
        return NO_STEP, None
    try:
        found = json.loads(path.read_bytes())
        step, epoch = found.get("step"), found.get("epoch")
    except (OSError, ValueError, AttributeError, RecursionError):
        return NO_STEP, None
    return (
        step if isinstance(step, int) and step >= 0 else NO_STEP,
        epoch if isinstance(epoch, int) else None,
    )


_RATE = "_per_s"


class Window:
    """The samples since the last line."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, int, float]] = {}
        self._nonzero: set[str] = set()
        """Rates that were not always 0; the others would make half of a line."""

    def add(self, sample: Mapping[str, float]) -> None:
        """Count a sample; a name may be absent from some."""
        for name, value in sample.items():
            total, count, largest = self._sums.get(name, (0.0, 0, value))
            self._sums[name] = total + value, count + 1, max(largest, value)

    def take(self) -> dict[str, float]:
        """Return the mean and the maximum of each name, and begin anew."""
        found: dict[str, float] = {}
        for name, (total, count, largest) in self._sums.items():
            if largest:
                self._nonzero.add(name)
            elif name.endswith(_RATE) and name not in self._nonzero:
                continue
            found[name] = _short(total / count)
            if not (name in WITHOUT_MAXIMUM or _of_gpu(name) in WITHOUT_MAXIMUM):
                found[maximum(name)] = _short(largest)
        self._sums.clear()
        return found


def _of_gpu(name: str) -> str:
    return name.partition("_")[2] if name.startswith("gpu") else name


def _short(value: float) -> float:
    """Return a value without digits that nobody measured."""
    return round(value) if abs(value) >= 1000 else round(value, 3)
