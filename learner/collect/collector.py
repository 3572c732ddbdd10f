"""The loop of the collector: sample, list what is reported, parse, until the learner has ended."""

from __future__ import annotations

import json
import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl.contract.metrics import NO_STEP, MetricsLine, make_line, own_name
from learner.collect.usage.sampler import SAMPLE_EVERY_S, Sampler

if TYPE_CHECKING:
    from learner.collect.parsing import Parsing

LAST_PARSE_S = 4.0
"""How long the last lines may take; `companion` ends the process a second later."""
LOOK_EVERY_S = 2.0
"""How often to look for new lines; half as often as that, a page would seem to stand still."""


class Collector:
    """Everything that is collected beside one learner.

    Args:
        folder: the attempt's folder; when it vanishes, the collector ends.
        complain: takes a sentence if parsing fails; then only the measuring goes on.
    """

    def __init__(
        self,
        folder: Path,
        sampler: Sampler,
        parsing: Parsing | None,
        complain: Callable[[str], None],
        reported: Reported | None = None,
    ) -> None:
        self._reported, self._folder, self._complain = reported, folder, complain
        self._sampler, self._parsing = sampler, parsing

    def run(self, control: int, finishing: Callable[[], object] = lambda: None) -> None:
        """Collect until the other end of a pipe is closed, then make a last pass.

        Args:
            finishing: called before the last pass.
        """
        sample_at = look_at = time.monotonic()
        while self._folder.is_dir():
            now = time.monotonic()
            if now >= sample_at:
                self._sampler.sample()
                if self._reported is not None:
                    self._reported.look()
                # A process that was stopped for long does not make up for it.
                sample_at = max(sample_at + SAMPLE_EVERY_S, now)
            if self._parsing is not None and now >= look_at:
                caught_up = self._look(self._parsing, until=sample_at)
                look_at = time.monotonic() + (LOOK_EVERY_S if caught_up else 0.0)
            due = min(sample_at, look_at) if self._parsing is not None else sample_at
            if _is_closed(control, max(0.0, due - time.monotonic())):
                finishing()
                self._finish()
                return

    def _look(self, parsing: Parsing, until: float) -> bool:
        try:
            return parsing.look(until)
        except Exception as error:  # noqa: BLE001 - a mistake of ours in a parser
            self._give_up(error)
            return True

    def _finish(self) -> None:
        self._sampler.finish()
        if self._reported is not None:
            self._reported.look()
        if self._parsing is not None:
            try:
                if not self._parsing.finish(time.monotonic() + LAST_PARSE_S):
                    self._complain("the program wrote faster than its lines can be read for "
                                   "metrics: those of its last lines are missing")  # fmt: skip
            except Exception as error:  # noqa: BLE001
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._parsing = None
        self._complain(f"parsed metrics are missing from here on: {type(error).__name__}: {error}")


def _is_closed(descriptor: int, timeout_s: float) -> bool:
    """Wait; return whether the other end of the pipe is closed."""
    return bool(select.select([descriptor], [], [], timeout_s)[0])


class Reported:
    """Writes a line for each report that it sees; a program may replace one before that."""

    def __init__(self, progress: Path, write: Callable[[MetricsLine], None]) -> None:
        self._progress, self._write = progress, write
        self._last_report = b""

    def look(self) -> None:
        """Write a line if there is a new report with values that its writer does not list."""
        try:
            content, time = self._progress.read_bytes(), self._progress.stat().st_mtime
            if content == self._last_report:
                return
            self._last_report, found = content, json.loads(content)
            if found.get("listed") or not (values := found.get("metrics")):
                return
            step, epoch = found.get("step"), found.get("epoch")
            self._write(
                make_line(
                    NO_STEP if step is None else int(step), None if epoch is None else int(epoch),
                    time, {own_name(str(n)): _number(value) for n, value in values.items()},
                )
            )  # fmt: skip
        except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            return  # none yet, or none that the watchdog can read either


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)
