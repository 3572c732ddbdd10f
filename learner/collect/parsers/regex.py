"""FfDL's `regex_extractor`: groups of regular expressions over a sliding window of lines.

With each line the window grows until it has `line_lookahead` lines, and then loses its first. The
first group that matches at its start makes a record and takes the lines of its match away. (FfDL
empties the whole window there, and so loses the records that stand behind the first one in it.)
"""

from __future__ import annotations

import re
import signal
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from types import FrameType, TracebackType
from typing import Any

from dlctl.contract.measured.parsers import LINE_LOOKAHEAD, compile_regex
from dlctl.contract.metrics import SUBID, MetricsLine
from learner.collect.parsers.literals import required_literals
from learner.collect.parsers.record import Draft, Kind, LineParser, kind_of

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
    literals: list[str] = field(default_factory=list)
    """What every match contains."""
    left_out: bool = False
    """Whether it was too slow once."""

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
            time, subid, required_literals(pattern),
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
        limit: TimeLimit | None = None,
    ) -> None:
        self._groups = groups
        self._complain = complain
        self._lookahead = max(1, lookahead)
        self._subid = subid
        self._limit = limit or TimeLimit()
        self._window: list[str] = []
        """The lines before the next that a match may begin with."""

    def finish(self) -> list[MetricsLine]:
        """Return the records in the window, which further lines would have moved to its start."""
        found: list[MetricsLine] = []
        with self._limit:
            while self._window:
                record, used = self._try(self._window)
                if record is not None:
                    found.append(record)
                self._window = self._window[max(1, used) :]
        return found

    def memory(self) -> list[str]:
        """Return the window."""
        window = self._window[-(self._lookahead - 1) :] if self._lookahead > 1 else []
        return window if sum(map(len, window)) <= _MOST_MEMORY else []

    def remember(self, memory: Any) -> None:
        """Begin with a window."""
        if isinstance(memory, list) and all(isinstance(line, str) for line in memory):
            self._window = memory[-(self._lookahead - 1) :] if self._lookahead > 1 else []

    def feed(self, text: str) -> list[MetricsLine]:
        """Return the records of further lines."""
        # The lines of the window come first again: only windows that end later are tried.
        old = len(self._window)
        text = "".join(self._window) + text
        lines = text.splitlines(keepends=True) if _is_plain(text) else _split(text)
        found: list[MetricsLine] = []
        begin = 0
        with self._limit:
            for last in self._candidates(text, lines, old):
                used = 1
                while used and begin <= last:
                    first = max(begin, last - self._lookahead + 1)
                    record, used = self._try(lines[first : last + 1])
                    begin = first + used if used else begin
                    if record is not None:
                        found.append(record)
        keep = max(begin, len(lines) - self._lookahead + 1, 0)
        self._window = lines[keep:] if self._lookahead > 1 else []
        return found

    def _try(self, lines: Sequence[str]) -> tuple[MetricsLine | None, int]:
        """Return the record of the first group that matches, and of how many lines; else 0."""
        window = "".join(lines)
        for group in self._groups:
            match = self._match(group, window)
            if match is not None:
                ends = accumulate(map(len, lines))
                used = next(n for n, end in enumerate(ends, 1) if end >= match.end())
                return group.record(match, self._subid), used
        return None, 0

    def _match(self, group: Group, window: str) -> re.Match[str] | None:
        for literal in group.literals:
            if literal not in window:
                return None
        if group.left_out:
            return None
        limit = self._limit
        limit.count += 1
        try:
            limit.working = True
            match = group.pattern.match(window)
            limit.working = False
        except TooSlow:
            self._leave_out(group)
            return None
        return match

    def _leave_out(self, group: Group) -> None:
        group.left_out = True
        self._complain(
            f"the regex of the group {group.name!r} in evaluation_metrics is too slow: it took "
            "more than half a second on one window of lines, so this group is left out."
        )

    def _candidates(self, text: str, lines: list[str], old: int) -> Iterator[int]:
        """Yield each line from `old` on with which a window may end that matches."""
        groups = [group for group in self._groups if not group.left_out]
        count = len(lines)
        if any(not group.literals for group in groups):
            yield from range(old, count)
            return
        ends = list(accumulate(map(len, lines)))
        marked: set[int] = set()
        for group in groups:
            marked.update(_lines_with(group.literals[0], text, ends))
        following = old
        for line in sorted(marked):
            last = min(line + self._lookahead, count)
            yield from range(max(line, following), last)
            following = max(following, last)


def _lines_with(literal: str, text: str, ends: list[int]) -> list[int]:
    """Return the lines in which a literal ends; its last line if it spans several.

    Args:
        ends: the offset behind each line.
    """
    found: list[int] = []
    length, line = len(literal), 0
    at = text.find(literal)
    while at >= 0:
        line = bisect_right(ends, at + length - 1, line)
        found.append(line)
        # Further ones that end in the same line tell nothing new.
        at = text.find(literal, max(at + 1, ends[line] - length + 1))
    return found


def _is_plain(text: str) -> bool:
    return text.isascii() and not any(c in text for c in "\x0b\x0c\x1c\x1d\x1e\r")


def _split(text: str) -> list[str]:
    lines = [f"{line}\n" for line in text.split("\n")]
    lines.pop()
    return lines


LIMIT_S = 0.5
"""Work is stopped after one to two of these, of processor time: an overloaded node is no fault."""


class TooSlow(BaseException):  # noqa: N818 - nothing that catches errors may catch it
    """The work has taken too long."""


class TimeLimit:
    """A limit on the processor time of each piece of work within it; for the main thread only.

    Python's matching looks for signals now and then, and an exception from a signal's handler ends
    it: no process of its own is needed, which would double the cost of each line.
    """

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self.working = False
        """Whether a piece of work runs now."""
        self.count = 0
        """Counts the pieces; to be raised before each."""
        self._limit_s = limit_s
        self._before = -1

    def __enter__(self) -> TimeLimit:
        self.working = False
        self._before = -1
        self._handler = signal.signal(signal.SIGVTALRM, self._tick)
        signal.setitimer(signal.ITIMER_VIRTUAL, self._limit_s, self._limit_s)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, self._handler)

    def _tick(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if not self.working:
            return
        if self.count == self._before:
            self.working = False
            raise TooSlow
        self._before = self.count
