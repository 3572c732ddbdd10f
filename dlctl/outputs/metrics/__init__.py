"""The metrics of a training, read from its site: lines, bins of long curves, exports.

Imports `dlctl.files`, `dlctl.lifecycle` and `dlctl.series`. What passes through are entries of the
one list, and the `Run` that they make.
"""

from __future__ import annotations

from dlctl.outputs.metrics.files import (
    FILES,
    EntryReader,
    kept_metrics,
    read_metrics,
)
from dlctl.outputs.metrics.reader import BUDGET_BYTES, MetricsReader

__all__ = [
    "BUDGET_BYTES",
    "FILES",
    "EntryReader",
    "MetricsReader",
    "kept_metrics",
    "read_metrics",
]
