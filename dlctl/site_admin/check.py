"""What one check of a site or of this machine has seen."""

from __future__ import annotations

from dataclasses import dataclass

OK, WARNING, FAILED = "ok", "warning", "failed"


@dataclass(frozen=True)
class Check:
    """One thing that was checked, and the result."""

    name: str
    outcome: str
    """`ok`, `warning` or `failed`."""
    seen: str
    hint: str = ""
    """What to do, if it is not ok."""
