"""Take a training's progress from its log, for programs that report none. Pure."""

from __future__ import annotations

import math
from typing import Any

from dlctl.contract import Stopped
from dlctl.contract.measured.judged_series import key_of
from dlctl.contract.metrics import DONE, LOSS, NO_STEP, MetricsLine, Source
from learner.job.guards import Guards

_OF_TRAINING = ("", "train")


class LogReports:
    """Takes the lines of metrics that were read from learner 0's log.

    Args:
        guards: None: the manifest has none.
    """

    def __init__(self, guards: Guards | None) -> None:
        self._guards = guards
        name = guards.metric if guards else ""
        self._metric = key_of(Source.LOG, 0, "", name) if name else None
        self._values: list[float | None] = []
        self._metrics: dict[str, float | None] = {}
        self.progress: dict[str, Any] = {}
        """Fields of a `Status`: the newest step and epoch; `metrics` with the loss and `done`."""
        self.stopped: Stopped | None = None
        """Why a guard ends the training, once one does."""

    def add(self, line: MetricsLine) -> None:
        """Take a line."""
        if line.event:
            return
        if line.step != NO_STEP:
            self.progress["step"] = line.step
        if line.epoch is not None:
            self.progress["epoch"] = line.epoch
        if line.done is not None:
            self._metrics[DONE] = line.done
            self.progress["metrics"] = self._metrics
        for name, value in line.values.items():
            key = key_of(Source.LOG, 0, line.series_group, name)
            if key.name == LOSS and key.group in _OF_TRAINING:
                self._metrics[LOSS] = value
                self.progress["metrics"] = self._metrics
                self._heed(value, line.step)
            if key == self._metric and self._guards and not self.stopped:
                self._values.append(value)
                self.stopped = self._guards.after_report(self._values, line.step)

    def _heed(self, loss: float | None, step: int) -> None:
        if self._guards and not self.stopped:
            self.stopped = self._guards.after_loss(math.nan if loss is None else loss, step)
