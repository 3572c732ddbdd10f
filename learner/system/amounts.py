"""Counts and sizes as people read them, on the node side."""

from __future__ import annotations

_UNITS = ("B", "kB", "MB", "GB", "TB")


def counted(number: int, noun: str) -> str:
    """Return `1 file` or `2 files`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def size_text(size_bytes: float) -> str:
    """Return a size in decimal units, with three digits."""
    value, unit = float(size_bytes), 0
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.3g} {_UNITS[unit]}"
