"""Tasks, as their programs see them: `BaseTask` is all that a user's code imports.

Imports the standard library only, so that a task's process starts quickly.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["BaseTask", "Order", "Reporter"]


class Order(enum.IntEnum):
    """The answer to a running task's report."""

    CONTINUE = 0
    STOP = 1
    """End: the search has seen enough. What `run` returns now still counts."""
    CHECKPOINT = 2
    """Save into `self.checkpoint` and return: another worker goes on from there."""


Reporter = Callable[[int, Mapping[str, float]], Order]
"""Takes a step and its metrics."""


def _nobody(step: int, metrics: Mapping[str, float]) -> Order:  # noqa: ARG001
    return Order.CONTINUE


class BaseTask:
    """One task. A subclass's constructor takes the arguments that the search chose, by name.

    Example:
        class Train(BaseTask):
            def __init__(self, lr: float, layers: int = 2) -> None:
                self.lr, self.layers = lr, layers

            def run(self) -> dict[str, float]:
                for step in range(100):
                    ...
                    if self.report(step, loss=loss) is not Order.CONTINUE:
                        break
                return {"value": loss}
    """

    checkpoint: Path
    """A folder for this run alone. It begins with what an earlier run of the same task left."""
    _reporter: Reporter = staticmethod(_nobody)

    def run(self) -> Any:
        """Do the work. Return what JSON can hold, or a number."""
        raise NotImplementedError(f"{type(self).__name__} has no method `run`")

    def report(self, step: int, **metrics: float) -> Order:
        """Tell the search how far the task is; return whether to go on."""
        return self._reporter(step, metrics)
