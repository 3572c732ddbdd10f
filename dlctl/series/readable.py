"""Values of metrics as people read them, with the unit that the name tells. Pure."""

from __future__ import annotations

import math
import re

from dlctl.units import format_bytes

_EXACT = {"_percent": "%", "_power_w": "W", "_temperature_c": "°C"}
_SHARES = ("wait_share",)
_PARTS = ((1e-3, 1e-6, "µs"), (1.0, 1e-3, "ms"), (120.0, 1.0, "s"), (7200.0, 60.0, "min"),
          (172800.0, 3600.0, "h"), (math.inf, 86400.0, "d"))  # fmt: skip
_BYTES, _MEMORY = re.compile("bytes(_per_s)?$"), re.compile("memory|rss")
"""Names of sizes; memory is told in powers of 1024, files and transfers in powers of 1000."""
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def readable(name: str, value: float) -> str:
    """Return a value with its unit, such as `289 MiB`, `3.43 ms`, `97 %` or `17,467 /s`.

    Args:
        name: ends in the unit, as `memory_bytes` and `step_s` do; others have four digits.
    """
    base = name.removesuffix("_max")
    if not math.isfinite(value):
        return format(value, "g")
    if (size_name := _BYTES.search(base)) is not None:
        size = memory_size(value) if _MEMORY.search(base) else format_bytes(value)
        return f"{size}/s" if size_name[1] else size
    if base.endswith("_per_s"):
        return f"{_three(value)} /s"
    for ending, unit in _EXACT.items():
        if base.endswith(ending):
            return f"{_three(value)} {unit}"
    if base in _SHARES:
        return f"{_three(100 * value)} %"
    if base.endswith("_s") or base == "seconds":
        return exact_span(value)
    return format(value, ".4g")


def _three(value: float) -> str:
    """Return three digits, and all those before the point."""
    return f"{value:,.0f}" if abs(value) >= 99.95 else format(value, ".3g")


def memory_size(value: float) -> str:
    """Return a size of memory, as `289 MiB`; files and transfers have `format_bytes`."""
    power = 0
    while abs(value) >= 1000 and power < len(_SIZES) - 1:
        value, power = value / 1024, power + 1
    return f"{_three(value)} {_SIZES[power]}"


def held_span(value_s: float) -> str:
    """Return the time of nodes or GPUs, as `45 s`, `12.5 min` or, as they are billed, `1,234 h`."""
    return exact_span(value_s) if value_s < _PARTS[3][0] else f"{_three(value_s / 3600)} h"


def exact_span(value_s: float) -> str:
    """Return a duration to three digits, as `3.43 ms` or `2.5 h`; `format_span` is a rough one."""
    if value_s == 0:
        return "0 s"
    scale, unit = next((s, u) for limit, s, u in _PARTS if abs(value_s) < limit)
    return f"{_three(value_s / scale)} {unit}"
