"""What a learner writes while it trains: lines of metrics, bins of long curves, its progress.

Imports the contract only. What passes through are numbers by name.
"""

from __future__ import annotations

from learner.job.metrics.lines import (
    PROGRESS_INTERVAL_S,
    MetricsFile,
    Progress,
    StepTimes,
    finished_file,
    memory_bytes,
    short_number,
    tell,
)

__all__ = [
    "PROGRESS_INTERVAL_S", "MetricsFile", "Progress", "StepTimes", "finished_file",
    "memory_bytes", "short_number", "tell",
]  # fmt: skip
