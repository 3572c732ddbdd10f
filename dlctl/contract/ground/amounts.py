"""Counts, sizes and durations for people: log, verdict and every command write them alike."""

from __future__ import annotations

import contextlib
import math
import re

_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def counted(number: int, noun: str) -> str:
    """Return `1 file` or `2 files`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def natural(text: str) -> list[tuple[int, float, str]]:
    """Return a key by which `w2` comes before `w10`, and the number `0.5` before `1e1`."""
    with contextlib.suppress(ValueError):
        if math.isfinite(number := float(text)):
            return [(0, number, "")]
    parts = re.findall(r"([0-9]+)|([^0-9]+)", text)
    return [(0, int(number), "") if number else (1, 0, word.casefold()) for number, word in parts]


def format_bytes(size_bytes: float) -> str:
    """Return a measured size in decimal units, as disks and networks have them: `1.5 MB`."""
    if size_bytes < 999.5:
        return f"{size_bytes:.0f} B"
    value, unit = size_bytes / 1000, 1
    while value >= 999.95 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.1f} {_UNITS[unit]}"


def format_duration(duration_s: float) -> str:
    """Return a duration as the manifest takes it: `1d12h`, `1h30m`, `90s` as `1m30s`."""
    rest = round(duration_s)
    if rest <= 0:
        return "0s"
    text = ""
    for unit, seconds in _SECONDS.items():
        count, rest = divmod(rest, seconds)
        text += f"{count}{unit}" if count else ""
    return text


def format_span(duration_s: float) -> str:
    """Return a rough duration for people, such as `3 min`."""
    for limit, unit, name in ((90, 1, "s"), (5400, 60, "min"), (129600, 3600, "h")):
        if duration_s < limit:
            return f"{max(0, duration_s) / unit:.0f} {name}"
    return f"{duration_s / 86400:.0f} d"
