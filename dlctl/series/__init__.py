"""The metrics of a training, and their meaning: curves, events, answers. Pure.

Imports the contract and `dlctl.units` only, and reads no file: `dlctl.outputs.metrics` brings the
lines. What passes through is a `Run`: one list over all sources and attempts, in which steps that
were done again have replaced the earlier ones.
"""

from __future__ import annotations

from dlctl.series.curve import Columns, Curve, Key
from dlctl.series.run import AttemptSpan, Event, Run

__all__ = ["AttemptSpan", "Columns", "Curve", "Event", "Key", "Run"]
