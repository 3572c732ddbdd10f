"""FfDL's `regex_extractor`: groups of regular expressions over a sliding window of lines.

With each line the window grows until it has `line_lookahead` lines, and then loses its first. The
first group that matches at its start makes a record and takes the lines of its match away. (FfDL
empties the whole window there, and so loses the records that stand behind the first one in it.)
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, NoReturn

from dlctl.contract.measured.judged_series import data_of
from dlctl.contract.measured.parsers import LINE_LOOKAHEAD, compile_regex
from dlctl.contract.metrics import SUBID, MetricsLine, own_name
from learner.collect.parsers.record import Draft, Kind, LineParser, kind_of

LIMIT_S = 0.5
"""Processor time for one match: an overloaded node is no fault of the expression."""
_MOST_MEMORY = 64 * 1024
"""Characters of a window that are kept for the next process."""


@dataclass(frozen=True)
class _Item:
    """A value of a record."""

    name: str
    kind: Kind
    literal: str | None
    """The value, unless it comes from the match."""
    source: str
    """The named group that it comes from."""


@dataclass
class Group:
    """One group of the manifest."""

    name: str
    pattern: re.Pattern[str]
    values: list[_Item] = field(default_factory=list)
    axes: list[_Item] = field(default_factory=list)
    time: _Item | None = None
    subid: _Item | None = None
    left_out: bool = False
    """Whether it was too slow once."""
    remarked: bool = False
    """Whether other groups were tried on lines that it took."""

    @classmethod
    def of(cls, name: str, plain: Mapping[str, Any]) -> Group:
        """Return the group that a plan describes.

        Raises:
            ValueError: its regular expression is none.
        """
        pattern = compile_regex(str(plain.get("regex", "")))
        meta = plain.get("meta") or {}
        names = pattern.groupindex
        scalars = plain.get("scalars") or plain.get("values") or {}
        time, subid = (
            _item(key, None, meta[key], names) if meta.get(key) else None for key in ("time", SUBID)
        )
        return cls(
            name, pattern, _items(scalars, names), _items(plain.get("etimes") or {}, names),
            time, subid,
        )  # fmt: skip

    def record(self, match: re.Match[str], subid: str) -> MetricsLine | None:
        """Return the record of a match."""
        draft = Draft(self.name)
        for item in self.axes:
            draft.axis(item.name, item.kind, _value(item, match))
        for item in self.values:
            draft.value(item.name, item.kind, _value(item, match))
        if self.time is not None:
            draft.when(_value(self.time, match))
        own = _value(self.subid, match) if self.subid is not None else None
        draft.text(SUBID, own or subid)
        return draft.line()


def by_data(line: MetricsLine) -> list[MetricsLine]:
    """Return a line for each kind of data: in a single group the names' beginnings tell them."""
    found: dict[str, MetricsLine] = {}
    for name in [*line.values, *(name for name in line.texts if name != SUBID)]:
        group, own = data_of(name)
        own = own_name(own)
        run = {SUBID: line.texts[SUBID]} if SUBID in line.texts else {}
        group = group or line.group
        mine = found.setdefault(group, replace(line, group=group, values={}, texts=run))
        if name in line.values:
            mine.values[own] = line.values[name]
        else:
            mine.texts[own] = line.texts[name]
    return list(found.values())


def _items(plain: Mapping[str, Any], names: Mapping[str, int]) -> list[_Item]:
    return [
        _item(str(name), item.get("type"), item.get("value"), names)
        for name, item in plain.items() if isinstance(item, Mapping)
    ]  # fmt: skip


def _item(name: str, kind: object, value: object, names: Mapping[str, int]) -> _Item:
    """Return what `$name` or a literal stands for; an unknown name never has a value."""
    text = "" if value is None else str(value)
    known = kind_of(kind) or Kind.STRING
    if not text.startswith("$"):
        return _Item(name, known, text, "")
    return _Item(name, known, None, text[1:] if text[1:] in names else "")


def _value(item: _Item, match: re.Match[str]) -> str | None:
    return match[item.source] if item.source else item.literal


class RegexParser(LineParser):
    """The window over the lines of one file.

    Args:
        groups: shared by the parsers of all files: a group that is too slow is left out in all.
        complain: takes a sentence about a group that was left out.
        subid: which of several runs the file belongs to, unless a group says so.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        complain: Callable[[str], None],
        lookahead: int = LINE_LOOKAHEAD,
        subid: str = "",
        limit_s: float = LIMIT_S,
    ) -> None:
        self._groups, self._complain, self._subid = groups, complain, subid
        self._lookahead = max(1, lookahead)
        self._limit_s = limit_s
        self._window: list[str] = []

    def finish(self) -> list[MetricsLine]:
        """Return the records in the window, which further lines would have moved to its start."""
        found: list[MetricsLine] = []
        with _ended_by_a_timer():
            while self._window:
                del self._window[: max(1, self._try(found))]
        return found

    def memory(self) -> list[str]:
        """Return the window."""
        return self._window if sum(map(len, self._window)) <= _MOST_MEMORY else []

    def remember(self, memory: Any) -> None:
        """Begin with a window."""
        if isinstance(memory, list) and all(isinstance(line, str) for line in memory):
            self._window = list(memory)

    def feed(self, text: str) -> list[MetricsLine]:
        """Return the records of further lines."""
        found: list[MetricsLine] = []
        with _ended_by_a_timer():
            for line in text.split("\n")[:-1]:
                self._window.append(f"{line}\n")
                del self._window[: -self._lookahead]
                while used := self._try(found):
                    del self._window[:used]
        return found

    def _try(self, found: list[MetricsLine]) -> int:
        """Append the record of the first group that matches; return how many lines it took."""
        window = "".join(self._window)
        for group in self._groups:
            match = None if group.left_out or not window else self._match(group, window)
            if match is not None:
                if (record := group.record(match, self._subid)) is not None:
                    found += by_data(record) if len(self._groups) == 1 else [record]
                self._remark(group, window)
                ends = accumulate(map(len, self._window))
                return next(n for n, end in enumerate(ends, 1) if end >= match.end())
        return 0

    def _remark(self, first: Group, window: str) -> None:
        """Say, once for each group, that it takes the lines that another one would match, too."""
        if first.remarked:
            return
        first.remarked = True
        for other in self._groups[self._groups.index(first) + 1 :]:
            if not other.left_out and self._match(other, window) is not None:
                self._complain(
                    f"the regex of the group {other.name!r} in evaluation_metrics matches lines "
                    f"that the group {first.name!r} takes first. Let a single group find all "
                    "values of a line: their names may begin with train_, validation_ or test_."
                )

    def _match(self, group: Group, window: str) -> re.Match[str] | None:
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, self._limit_s)
            match = group.pattern.match(window)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        except _TooSlow:
            group.left_out = True
            self._complain(
                f"the regex of the group {group.name!r} in evaluation_metrics is too slow: it took "
                "more than half a second on one window of lines, so this group is left out."
            )
            return None
        return match


class _TooSlow(BaseException):  # noqa: N818 - nothing that catches errors may catch it
    pass


@contextmanager
def _ended_by_a_timer() -> Iterator[None]:
    """Let a timer of processor time end a match, in the main thread.

    Python's matching looks for signals now and then: no process of its own is needed, which would
    double the cost of each line.
    """

    def end(*_: object) -> NoReturn:
        raise _TooSlow

    handler = signal.signal(signal.SIGVTALRM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGVTALRM, handler)
