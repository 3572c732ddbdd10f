"""What a line of `metrics/<attempt>-<rank>.jsonl` holds, and the names that dlctl itself uses.

A line is one JSON object: `step`, `epoch`, `time` (Unix seconds on the node's clock), and a number
for each further name; null stands for NaN and infinity, which JSON can't hold. `Status.metrics`
uses the same names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

STEP, EPOCH, TIME = "step", "epoch", "time"
EVENT = "event"
"""Words instead of values: what happened after the step, as an order of `dlctl tune`."""

LOSS = "loss"
LEARNING_RATE = "learning_rate"
SAMPLES_PER_S = "samples_per_s"
"""The samples of all learners together, per second."""
STEP_S = "step_s"
"""Mean duration of a step; the four below are its parts other than computing."""
EXCHANGE_S = "exchange_s"
DATA_WAIT_S = "data_wait_s"
CHECKPOINT_STALL_S = "checkpoint_stall_s"
CHECKPOINT_S = "checkpoint_s"
"""How long the newest checkpoint took until it was safe on the disk."""
MEMORY_BYTES = "memory_bytes"
"""Resident memory of the learner's process."""
BATCHES = "batches"
"""With a parameter server, this learner's own value, like all below."""
PUSHES = "pushes"
PUSHES_PER_S = "pushes_per_s"
STALENESS = "staleness"
"""Mean number of other learners' pushes between a pull and the push that is based on it."""
WAIT_SHARE = "wait_share"
"""Share of the time in which the learner waited for others."""
RESTARTS = "restarts"
"""How often the learner was restarted."""

STEP_PARTS = {EXCHANGE_S: "exchange", DATA_WAIT_S: "data", CHECKPOINT_STALL_S: "checkpoint"}
"""Parts of `step_s`, with the word that people read."""
SERVER_METRICS = (STALENESS, PUSHES, PUSHES_PER_S, WAIT_SHARE, BATCHES, RESTARTS)
RESERVED = (STEP, EPOCH, TIME, EVENT, LOSS, LEARNING_RATE, SAMPLES_PER_S, STEP_S, CHECKPOINT_S,
            MEMORY_BYTES,
            *STEP_PARTS, *SERVER_METRICS)  # fmt: skip
"""Names that a user's own metric can't have."""


@dataclass(frozen=True)
class MetricsLine:
    """One measurement."""

    step: int
    epoch: int | None = None
    time: float | None = None
    values: dict[str, float | None] = field(default_factory=dict)
    event: str = ""
    """What happened at this step, in words; then there are no values."""

    def plain(self) -> dict[str, float | int | str | None]:
        """Return the line as one flat object, as it stands in the file."""
        head = {STEP: self.step, EPOCH: self.epoch, TIME: self.time}
        known = {k: v for k, v in head.items() if v is not None}
        return known | ({EVENT: self.event} if self.event else {}) | self.values

    def encode(self) -> bytes:
        """Return the line, newline included."""
        return (json.dumps(self.plain(), allow_nan=False, ensure_ascii=False) + "\n").encode()


def make_line(step: int, epoch: int, time: float, values: Mapping[str, float]) -> MetricsLine:
    """Return a line; a value that is no finite number becomes None."""
    known = {name: finite(value) for name, value in values.items()}
    return MetricsLine(step, epoch, round(time, 3), known)


def parse_line(text: str) -> MetricsLine | None:
    """Return the line in a text; None for a partial line, or for something else."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not _is_whole(step := found.pop(STEP, None)):
        return None
    epoch, time = found.pop(EPOCH, None), found.pop(TIME, None)
    event = found.pop(EVENT, "")
    return MetricsLine(
        step=step,
        epoch=epoch if _is_whole(epoch) else None,
        time=float(time) if isinstance(time, (int, float)) else None,
        values={name: value for name, value in found.items() if _is_value(value)},
        event=event if isinstance(event, str) else "",
    )


def finite(value: float) -> float | None:
    """Return a number, or None for NaN and infinity."""
    return value if math.isfinite(value) else None


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_value(value: object) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
