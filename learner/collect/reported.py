"""List the values that a program writes to its progress file and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from dlctl.contract.metrics import NO_STEP, MetricsLine, make_line, own_name


class Reported:
    """Writes a line for each report that it sees; a program may replace one before that.

    Args:
        progress: the learner's progress file.
        write: takes each line.
    """

    def __init__(self, progress: Path, write: Callable[[MetricsLine], None]) -> None:
        self._progress, self._write = progress, write
        self._seen = b""

    def look(self) -> None:
        """Write a line if there is a new report with values that its writer does not list."""
        try:
            content, time = self._progress.read_bytes(), self._progress.stat().st_mtime
            if content == self._seen:
                return
            self._seen, found = content, json.loads(content)
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
