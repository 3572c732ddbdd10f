"""The reports of a learner while it trains: metrics as JSON lines, progress for the watchdog.

A full disk may lose lines; it never ends a training.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TextIO, cast

from dlctl.contract.ground.whole_files import whole_file
from dlctl.contract.measured.bins import FROM_BYTES
from dlctl.contract.metrics import (
    MEMORY_BYTES,
    SAMPLES_PER_S,
    STEP_S,
    EventKind,
    MetricsLine,
    finite,
    make_line,
)
from learner.job.bins import BinsFile, append

PROGRESS_INTERVAL_S = 0.5


def tell(text: str, stream: TextIO | None = None) -> None:
    """Print a line (to standard output by default); a full disk loses it and raises no error.

    What the encoding of a site's locale lacks becomes an escape.
    """
    stream = stream or sys.stdout
    encoding = stream.encoding or "utf-8"
    with contextlib.suppress(OSError):
        print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)


class MetricsFile:
    """JSON lines, each appended with one write; readers drop the steps that a restart repeats.

    Args:
        warn: called once, when lines begin to be lost.
    """

    def __init__(self, path: Path, warn: Callable[[str], None] = tell) -> None:
        self._path, self._warn = path, warn
        self._warned = False
        with contextlib.suppress(OSError):
            path.parent.mkdir(exist_ok=True)
        self._bins: BinsFile | None = None
        self._lock = threading.Lock()

    def append(
        self, step: int, epoch: int | None, values: Mapping[str, float], group: str = ""
    ) -> None:
        """Append one line; NaN and infinity become null."""
        self.add(make_line(step, epoch, time.time(), values, group))

    def tell(
        self,
        step: int,
        epoch: int | None,
        event: str,
        kind: EventKind = EventKind.ORDER,
        values: Mapping[str, float] | None = None,
    ) -> None:
        """Append a line that says what happened at a step."""
        known = {name: finite(value) for name, value in (values or {}).items()}
        now = round(time.time(), 3)
        self.add(MetricsLine(step, epoch, now, known, event=event, kind=kind.value))

    def add(self, line: MetricsLine) -> None:
        """Append a line."""
        self.add_all([line])

    def add_all(self, lines: Sequence[MetricsLine]) -> None:
        """Append lines with one write."""
        if not lines:
            return
        with self._lock:  # a program may log from several threads
            self._add_all(lines)

    def _add_all(self, lines: Sequence[MetricsLine]) -> None:
        try:
            encoded = [line.encode() for line in lines]
            size_bytes = append(self._path, b"".join(encoded))
            if self._bins is not None:
                for line, text in zip(lines, encoded):
                    self._bins.add(line, len(text))
            elif size_bytes > FROM_BYTES:
                self._bins = BinsFile(self._path)
        except OSError as error:
            if not self._warned:
                self._warned = True
                self._warn(
                    f"WARNING: metrics are lost from step {lines[0].step} on, as long as "
                    f"{self._path} can't be written: {error.strerror or error}"
                )


def finished_file(progress: Path) -> Path:
    """Return the file that exists once the training loop has finished."""
    return progress.with_name(f"{progress.name}.finished")


class Progress:
    """The progress file that the watchdog reads, rewritten at most twice a second.

    `listed` in it says that the values are listed elsewhere, or are none for the list.
    """

    def __init__(self, path: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._written_at = -math.inf
        self._waiting: dict[str, object] | None = None
        """The newest report that came too soon after the last write."""

    def update(
        self,
        step: int,
        epoch: int | None,
        metrics: Mapping[str, float],
        *,
        warning: str = "",
        done: float | None = None,
        force: bool = False,
    ) -> None:
        """Write these values as JSON, at most every `PROGRESS_INTERVAL_S`.

        Args:
            done: the share of the training, from 0 to 1.
            force: write even if the last write was more recent than that.
        """
        if self._path is None:
            return
        self._waiting = {
            "step": step, "epoch": epoch, "metrics": metrics, "warning": warning, "done": done,
            "listed": True,
        }  # fmt: skip
        if force or self._clock() - self._written_at >= PROGRESS_INTERVAL_S:
            self.flush()

    def flush(self) -> None:
        """Write what came too soon after the last write."""
        content, self._waiting = self._waiting, None
        if self._path is None or content is None:
            return
        self._written_at = self._clock()
        metrics = cast("Mapping[str, float]", content["metrics"])
        content["metrics"] = {name: finite(value) for name, value in metrics.items()}
        # The node's own disk; the next update comes soon.
        with contextlib.suppress(OSError), whole_file(self._path, sync=False) as file:
            file.write(json.dumps(content, allow_nan=False).encode())

    def touch(self) -> None:
        """Report that the learner is at work where there is no step to report."""
        now = self._clock()
        if self._path is not None and now - self._written_at >= PROGRESS_INTERVAL_S:
            self._written_at = now
            with contextlib.suppress(OSError):
                os.utime(self._path)


class StepTimes:
    """Where the time of a step goes: means over the steps since the last `read`.

    Counting takes a few additions per step: under 1 % even of a 1 ms step (docs/benchmarks.md).
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._sums: dict[str, float] = {}
        self._steps = self._samples = 0
        self._since = clock()

    def begin(self) -> None:
        """Reset the sums and the clock, so that time outside of steps is not counted."""
        self._sums.clear()
        self._steps = self._samples = 0
        self._since = self._clock()

    def add(self, samples: int, steps: int = 1, **seconds: float) -> None:
        """Count a step with its samples (of all learners), or only its time (`steps` 0)."""
        self._steps += steps
        self._samples += samples
        for name, value in seconds.items():
            self._sums[name] = self._sums.get(name, 0.0) + value

    def read(self) -> dict[str, float]:
        """Return `memory_bytes`, `step_s`, `samples_per_s` and the means of the added times; reset.

        Without a step since the last call, only `memory_bytes` is returned.
        """
        elapsed_s, steps = self._clock() - self._since, self._steps
        values = {MEMORY_BYTES: float(memory_bytes())}
        if steps:
            values[SAMPLES_PER_S] = self._samples / elapsed_s if elapsed_s > 0 else 0.0
            values[STEP_S] = elapsed_s / steps
            values.update((name, value / steps) for name, value in self._sums.items())
        self.begin()
        return values


def memory_bytes() -> int:
    """Return this process's resident memory in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def short_number(value: float) -> str:
    """Return a number as text for people, such as `0.1234`, `7412` or `5.83e-07`."""
    small = value != 0 and abs(value) < 1e-3
    if small or abs(value) >= 1e7:
        return f"{value:.3g}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4f}"
