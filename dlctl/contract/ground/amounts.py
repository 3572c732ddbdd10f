"""Counts and sizes as people read them: log, verdict and every command write them alike."""

from __future__ import annotations

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def counted(number: int, noun: str) -> str:
    """Return `1 file` or `2 files`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def format_bytes(size_bytes: float) -> str:
    """Return a measured size in decimal units, as disks and networks have them: `1.5 MB`."""
    if size_bytes < 999.5:
        return f"{size_bytes:.0f} B"
    value, unit = size_bytes / 1000, 1
    while value >= 999.95 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.1f} {_UNITS[unit]}"
