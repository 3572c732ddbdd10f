"""From FfDL's records to lines of metrics: types, axes, groups, times as logs write them."""

from __future__ import annotations

import datetime
import enum
import math
import re
import time
from collections.abc import Callable
from typing import Any

from dlctl.contract.metrics import NO_STEP, SUBID, MetricsLine, own_name

ITERATION, EPOCH = "iteration", "epoch"
TIMES = ("wall_time", "timestamp")
"""Axes that are times, the more exact first."""
_MOST_CHARACTERS = 4096
"""A longer text is cut."""
_LARGEST_WHOLE = 2**63


class Kind(enum.Enum):
    """FfDL's types of values, with the numbers that files may hold."""

    STRING = 0
    JSONSTRING = 1
    INT = 2
    FLOAT = 3


class LineParser:
    """Turns the lines of one file into lines of metrics."""

    def feed(self, text: str) -> list[MetricsLine]:
        """Return the records of further lines, each of which ends with a newline."""
        raise NotImplementedError

    def finish(self) -> list[MetricsLine]:
        """Return the records that are left once no further line comes."""
        return []

    def memory(self) -> Any:
        """Return as JSON what the parser has to know to go on in another process."""

    def remember(self, memory: Any) -> None:
        """Go on with what another process's parser knew; nonsense is ignored."""


def kind_of(word: object) -> Kind | None:
    """Return the type that a name or number means; STRING for None, None for another word."""
    if word is None:
        return Kind.STRING
    text = str(word).upper()
    for kind in Kind:
        if text in (kind.name, str(kind.value)):
            return kind
    return None


def as_number(raw: object) -> float | int | None:
    """Return a number; NaN for what is a number that no line can hold, None if it is none."""
    if isinstance(raw, bool):
        return int(raw)
    try:
        number = float(raw)  # type: ignore[arg-type]
    except OverflowError:
        return math.nan
    except (ValueError, TypeError):
        return _as_hexadecimal(raw)
    if not math.isfinite(number):
        return math.nan
    if isinstance(raw, int):
        return raw if abs(raw) < _LARGEST_WHOLE else number
    return number


def _as_hexadecimal(raw: object) -> int | None:
    try:
        return int(raw, 16) if isinstance(raw, str) else None
    except ValueError:
        return None


def as_whole(raw: object) -> int | None:
    """Return a whole number, without its fraction; None if it is none or absurdly large."""
    number = as_number(raw)
    if number is None or not math.isfinite(number) or abs(number) >= _LARGEST_WHOLE:
        return None
    return int(number)


def _clean(text: str) -> str:
    """Return a text without halves of characters, which JSON may hold and a file can't."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


class Draft:
    """One record, part by part."""

    def __init__(self, group: str = "") -> None:
        self._group = _clean(group)
        self._step = NO_STEP
        self._epoch: int | None = None
        self.done: float | None = None
        self._times: dict[str, object] = {}
        self._values: dict[str, float | None] = {}
        self._texts: dict[str, str] = {}

    def axis(self, name: str, kind: Kind, raw: object) -> None:
        """Add one of FfDL's `etimes`."""
        if name == ITERATION:
            step = as_whole(raw)
            self._step = NO_STEP if step is None or step < 0 else step
        elif name == EPOCH:
            self._epoch = as_whole(raw)
        elif name in TIMES:
            self._times[name] = raw
        else:
            self.value(name, kind, raw)

    def when(self, raw: object) -> None:
        """Add `meta.time`, which counts if no axis is a time."""
        if raw:
            self._times["meta"] = raw

    def value(self, name: str, kind: Kind, raw: object) -> None:
        """Add a value; what is not of its type is left out. The last one of a name counts."""
        if raw is None:
            return
        name = own_name(_clean(name))
        if kind in (Kind.STRING, Kind.JSONSTRING):
            self._values.pop(name, None)
            self._texts[name] = _clean(str(raw)[:_MOST_CHARACTERS])
            return
        number = as_number(raw)
        if number is None:
            return
        if kind is Kind.INT and math.isfinite(number):
            number = int(number)
        self._texts.pop(name, None)
        self._values[name] = number if math.isfinite(number) else None

    def text(self, name: str, text: str) -> None:
        """Add a text, unless it is empty."""
        if text:
            self._texts[own_name(name)] = _clean(text[:_MOST_CHARACTERS])

    def line(self, clock: Callable[[], float] = time.time) -> MetricsLine | None:
        """Return the line; None if it would hold no value."""
        if not self._values and not self._texts.keys() - {SUBID}:
            return None
        at = clock()
        if self._times:
            at = self._when(at)
        return MetricsLine(
            self._step, self._epoch, round(at, 3), self._values, group=self._group,
            texts=self._texts, done=self.done,
        )  # fmt: skip

    def _when(self, now: float) -> float:
        for name in (*TIMES, "meta"):
            raw = self._times.get(name)
            found = parse_time(raw, now) if isinstance(raw, (str, int, float)) else None
            if found is not None:
                return found
        return now


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
