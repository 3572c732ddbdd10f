"""Recognize the error lines that a launcher prints, and that say what ended its step."""

from __future__ import annotations

import re

from dlctl.contract.programs.verdict_rules import OVER_MEMORY, UNREACHED

_AWAY = re.compile(
    r"Unable to contact slurm controller|Socket timed out on send/recv operation", re.IGNORECASE
)
_BUSY = re.compile(r"Memory required by task is not available", re.IGNORECASE)
_LOST = re.compile(r"node fail(ure)?\b", re.IGNORECASE)


def says_lost(words: list[str]) -> str:
    """Return the line in which srun reports that a node is gone, or an empty text."""
    lost = (line.strip() for line in words if _LOST.search(line) or UNREACHED.search(line))
    return next(lost, "")


def says_away(words: list[str]) -> bool:
    """Return whether srun could not begin because Slurm's controller did not answer."""
    return any(_AWAY.search(line) for line in words)


def says_busy(words: list[str]) -> bool:
    """Return whether srun could not begin because Slurm had not yet cleaned up an ended step."""
    return any(_BUSY.search(line) for line in words)


def says_full(words: list[str]) -> str:
    """Return the line in which Slurm reports that a step ran out of memory, or an empty text."""
    return next((line.strip() for line in words if OVER_MEMORY.search(line)), "")
