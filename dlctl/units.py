"""Sizes and durations: text at the borders, bytes and seconds everywhere inside.

Sizes. `KiB MiB GiB TiB PiB` and `Ki Mi Gi Ti Pi` are powers of 1024; `KB MB GB TB PB` are powers of
1000, in any case (`8Gb` is 8,000,000,000 bytes, never bits). A single letter (`512M`) is a power
of 1024, as Slurm's `--mem` means it. A number without a unit is refused.

Durations. `90s 30m 4h 2d 1w`, combined as in `1h30m`; `HH:MM:SS` and `D-HH:MM:SS` as Slurm
prints them. A bare number is refused: Slurm means minutes by it, most other programs mean seconds.
So is `MM:SS`, which reads as hours and minutes to half of its readers.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal

from dlctl.contract.ground.amounts import counted as counted
from dlctl.contract.ground.amounts import format_bytes as format_bytes
from dlctl.contract.ground.amounts import format_duration as format_duration
from dlctl.contract.ground.amounts import format_span as format_span
from dlctl.contract.ground.amounts import natural as natural

_SIZE = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*([a-z]*)", re.IGNORECASE | re.ASCII)
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_SIZE_CHOICES = "write a number and a unit, as in 8GiB, 8000MiB, 16GB or 512M"

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_SPELLED = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), "m"),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), "h"),
    **dict.fromkeys(("d", "day", "days"), "d"),
    **dict.fromkeys(("w", "week", "weeks"), "w"),
}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.IGNORECASE | re.ASCII)
_PARTS = re.compile(rf"(?:{_PART.pattern})+", re.IGNORECASE | re.ASCII)
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):(\d{2}):(\d{2})", re.ASCII)
_DURATION_CHOICES = "write 4h, 30m, 90s, 2d, 1h30m, 01:30:00 or 1-00:00:00"
_MAX_TEXT = 64
_MAX_BYTES = 1 << 62
_MAX_S = 100 * 365 * 86400
_SEVERAL = 5
"""Names that are listed; more are counted."""


class UnitError(ValueError):
    """The text is not a size or not a duration; the message says what is allowed."""


def parse_size(text: str) -> int:
    """Return a size in bytes.

    Raises:
        UnitError: the text is not a size, has no unit, or is not a positive number of bytes.
    """
    stripped = text.strip()
    match = _SIZE.fullmatch(stripped) if len(stripped) <= _MAX_TEXT else None
    if match is None:
        raise UnitError(f"{_shown(text)} is not a size; {_SIZE_CHOICES}")
    number, unit = match.groups()
    if not unit:
        raise UnitError(f"{_shown(text)} has no unit; {_SIZE_CHOICES}")
    size_bytes = int(Decimal(number) * _unit_bytes(unit, text))
    if not 0 < size_bytes <= _MAX_BYTES:
        raise UnitError(f"{_shown(text)} is not a valid size; {_SIZE_CHOICES}")
    return size_bytes


def _unit_bytes(unit: str, text: str) -> int:
    lower = unit.lower()
    if lower in ("b", "byte", "bytes"):
        return 1
    match = re.fullmatch(r"([kmgtp])(ib?|b)?", lower)
    if match is None:
        raise UnitError(f"{_shown(text)} has the unknown unit {unit!r}; {_SIZE_CHOICES}")
    letter, suffix = match.groups()
    base = 1000 if suffix == "b" else 1024
    return int(base ** _POWER[letter])


def format_size(size_bytes: int) -> str:
    """Return a size as a person writes it: exact where a binary unit divides it, else rounded."""
    for power, unit in ((5, "PiB"), (4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        scale = 1024**power
        if size_bytes >= scale:
            return (
                f"{size_bytes // scale}{unit}"
                if size_bytes % scale == 0
                else _rounded(size_bytes, scale, unit)
            )
    return f"{size_bytes}B"


def _rounded(size_bytes: int, scale: int, unit: str) -> str:
    return f"{size_bytes / scale:.1f}".removesuffix(".0") + unit


def parse_duration(text: str) -> int:
    """Return a duration in whole seconds, rounded up.

    Raises:
        UnitError: the text is not a duration, is a bare number, or is not positive.
    """
    stripped = text.strip().lower()
    if len(stripped) > _MAX_TEXT:
        raise UnitError(f"{_shown(text)} is not a duration; {_DURATION_CHOICES}")
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", stripped):
        raise UnitError(
            f"{_shown(text)} has no unit (Slurm would read minutes, others seconds); "
            f"write {stripped}s, {stripped}m or {stripped}h"
        )
    duration_s = _clock_s(stripped, text) if ":" in stripped else _parts_s(stripped, text)
    if duration_s <= 0:
        raise UnitError(f"{_shown(text)} is no time at all; {_DURATION_CHOICES}")
    if duration_s > _MAX_S:
        raise UnitError(f"{_shown(text)} is too long: more than 100 years")
    return int(duration_s.to_integral_value("ROUND_CEILING"))


def _clock_s(stripped: str, text: str) -> Decimal:
    match = _CLOCK.fullmatch(stripped)
    if match is None:
        raise UnitError(f"{_shown(text)} is not a duration; {_DURATION_CHOICES}")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    if minutes > 59 or seconds > 59 or (match.group(1) and hours > 23):
        raise UnitError(f"{_shown(text)} is not a valid clock time; {_DURATION_CHOICES}")
    return Decimal(days * 86400 + hours * 3600 + minutes * 60 + seconds)


def _parts_s(stripped: str, text: str) -> Decimal:
    if _PARTS.fullmatch(stripped) is None:
        raise UnitError(f"{_shown(text)} is not a duration; {_DURATION_CHOICES}")
    seen: list[str] = []
    total_s = Decimal(0)
    for number, word in _PART.findall(stripped):
        unit = _SPELLED.get(word)
        if unit is None:
            raise UnitError(f"{_shown(text)} has the unknown unit {word!r}; {_DURATION_CHOICES}")
        if unit in seen:
            raise UnitError(f"{_shown(text)} names {word!r} twice; {_DURATION_CHOICES}")
        seen.append(unit)
        total_s += Decimal(number) * _SECONDS[unit]
    return total_s


def parse_moment(text: str) -> tuple[float | None, float]:
    """Return a time in Unix seconds, or None and how many seconds ago.

    Raises:
        UnitError: the text is neither an age, nor a time of day, nor a date.
    """
    now = datetime.now().astimezone()
    if clock := re.fullmatch(r"(\d{1,2}):(\d\d)(?::(\d\d))?", text):
        hour, minute, second = (int(part or 0) for part in clock.groups())
        if hour < 24 and minute < 60 and second < 60:
            then = now.replace(hour=hour, minute=minute, second=second, microsecond=0)
            return (then if then <= now else then - timedelta(days=1)).timestamp(), 0.0
    with contextlib.suppress(ValueError):
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp(), 0.0
    try:
        return None, float(parse_duration(text))
    except UnitError:
        raise UnitError(f"{text}: an age such as 10m or 2h, or a time such as 14:30 or "
                        "2026-01-31T14:30") from None  # fmt: skip


def format_slurm_time(duration_s: int) -> str:
    """Return a duration as sbatch's `--time` takes it: `D-HH:MM:SS`, or `HH:MM:SS` below a day."""
    days, rest = divmod(duration_s, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, seconds = divmod(rest, 60)
    clock = f"{hours:02d}:{minutes:02d}:{seconds:02d}"
    return f"{days}-{clock}" if days else clock


def _shown(text: str) -> str:
    return repr(text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "…")


def several(names: Sequence[str]) -> str:
    """Return `a, b, c, d, e and 7 more`."""
    more = f" and {len(names) - _SEVERAL} more" if len(names) > _SEVERAL else ""
    return ", ".join(names[:_SEVERAL]) + more


def unix_seconds(iso_time: str) -> float | None:
    """Return the time that a record or plan holds as ISO 8601; None if it holds none."""
    with contextlib.suppress(ValueError):
        return datetime.fromisoformat(iso_time).timestamp()
    return None
