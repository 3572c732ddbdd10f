"""Tasks, as their programs see them: `BaseTask` is all that a user's code imports.

Imports the standard library only, so that a task's process starts quickly.
"""

from __future__ import annotations

from search.tasks.base import BaseTask, Order, Reporter

__all__ = ["BaseTask", "Order", "Reporter"]
