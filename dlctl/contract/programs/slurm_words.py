"""Slurm's words that dlctl and a job's nodes read alike."""

from __future__ import annotations

import re

ANSWER_LOST = re.compile(
    r"timed out|timeout|zero bytes were transmitted|connection reset|connection lost"
    r"|broken pipe|unexpected message received|header lengths are longer"
    r"|communication (failure|shutdown)|send/recv",
    re.IGNORECASE,
)
"""What Slurm's commands print if the controller may have done all the same what was asked."""

DROPPED = "DROPPED"
"""The word for a job that the accounting calls `CANCELLED` without `by UID`: no person did it."""
