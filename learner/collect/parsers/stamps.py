"""Times as logs write them."""

from __future__ import annotations

import datetime
import math
import re

_GLOG = re.compile(
    r"[A-Z](?P<year>\d{4})?(?P<month>\d\d)(?P<day>\d\d)\s+"
    r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d+)\.(?P<fraction>\d+)"
)
_FRACTION = re.compile(r"[.,](\d+)")
_MILLISECONDS_FROM = 1e11
"""A larger number counts milliseconds: as seconds it would be the year 5138."""
_LATEST = 1e14
_DAY_S = 86400.0


def parse_time(text: str | float | int, now: float) -> float | None:
    """Return Unix seconds of a time; None if it is none.

    Args:
        text: a number of seconds or milliseconds, an ISO 8601 time, or glog's, which lacks the
            year. Without a time zone it is the node's.
        now: the current time, by which the missing year is found.
    """
    if isinstance(text, bool):
        return None
    try:
        number = float(text)
    except (ValueError, OverflowError):
        return _from_words(str(text).strip(), now)
    if not math.isfinite(number) or not 0 < number < _LATEST:
        return None
    return number / 1000 if number >= _MILLISECONDS_FROM else number


def _from_words(text: str, now: float) -> float | None:
    try:
        if match := _GLOG.match(text):
            return _from_glog(match, now)
        if text.endswith(("Z", "z")):
            text = f"{text[:-1]}+00:00"  # Python 3.10 does not know Z
        return datetime.datetime.fromisoformat(_FRACTION.sub(_six_digits, text)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _six_digits(match: re.Match[str]) -> str:
    """Return a fraction of a second as Python 3.10 reads it."""
    return f".{match[1][:6]:0<6}"


def _from_glog(match: re.Match[str], now: float) -> float:
    year = int(match["year"] or datetime.datetime.fromtimestamp(now).year)
    month, day, hour, minute = (int(match[n]) for n in ("month", "day", "hour", "minute"))
    begin = datetime.datetime(year, month, day, hour, minute)
    found = begin.timestamp() + float(f"{match['second']}.{match['fraction']}")
    if match["year"] is None and found > now + _DAY_S:
        begin = begin.replace(year=year - 1)
        found = begin.timestamp() + float(f"{match['second']}.{match['fraction']}")
    return found
