"""The local record: this user's trainings, and what was last known about each, in one SQLite file.

It caches what the sites say and remembers what was asked for: losing it loses no training.
"""

from __future__ import annotations

from dlctl.record.store import RecordStore, Repaired, state_directory
from dlctl.record.training import ADOPTED, FETCHED, GONE, UNKNOWN_IF_0, Record

__all__ = [
    "ADOPTED", "FETCHED", "GONE", "UNKNOWN_IF_0", "Record", "RecordStore", "Repaired",
    "state_directory",
]  # fmt: skip
