"""Samples what a learner uses, and writes a line of mean and maximum now and then."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from dlctl.contract.metrics import NO_STEP, MetricsLine
from learner.collect.usage.gpu import Gpus
from learner.collect.usage.window import Window

SAMPLE_EVERY_S = 2.0
SAMPLES_OF_A_LINE = 5


class Probe(Protocol):
    """One thing that is measured."""

    def sample(self) -> dict[str, float]:
        """Return the values now."""


class Sampler:
    """Asks all probes; writes a line after each `SAMPLES_OF_A_LINE` samples.

    Args:
        write: takes each line.
        progress: the learner's progress file, for its step and epoch.
    """

    def __init__(
        self,
        probes: Sequence[Probe],
        write: Callable[[MetricsLine], None],
        progress: Path | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._probes = probes
        self._write = write
        self._progress = progress
        self._clock = clock
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
