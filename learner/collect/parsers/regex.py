"""FfDL's `regex_extractor`: groups of regular expressions over a sliding window of lines.

With each line the window grows until it has `line_lookahead` lines, and then loses its first. The
first group that matches at its start makes a record and empties the window.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from dlctl.contract.metrics import MetricsLine
from dlctl.contract.parsers import LINE_LOOKAHEAD, compile_regex
from learner.collect.parsers.literals import required_literals
from learner.collect.parsers.record import SUBID, Draft, Kind, kind_of
from learner.collect.parsers.time_limit import TimeLimit, TooSlow

_MOST_MEMORY = 64 * 1024
"""Characters of a window that are kept for the next process."""
_Item = tuple[str, Kind, str]


@dataclass
class Group:
    """One group of the manifest."""

    name: str
    pattern: re.Pattern[str]
    values: list[_Item] = field(default_factory=list)
    axes: list[_Item] = field(default_factory=list)
    time: str = ""
    subid: str = ""
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
        scalars = plain.get("scalars") or plain.get("values") or {}
        return cls(
            name, pattern, _items(scalars), _items(plain.get("etimes") or {}),
            str(meta.get("time") or ""), str(meta.get("subid") or ""), required_literals(pattern),
        )  # fmt: skip

    def record(self, match: re.Match[str], subid: str) -> MetricsLine | None:
        """Return the record of a match."""
        found = match.groupdict()
        draft = Draft(self.name)
        for name, kind, value in self.axes:
            draft.axis(name, kind, _value(value, found))
        for name, kind, value in self.values:
            draft.value(name, kind, _value(value, found))
        draft.when(_value(self.time, found))
        draft.text(SUBID, str(_value(self.subid, found) or subid))
        return draft.line()


def _items(plain: Mapping[str, Any]) -> list[_Item]:
    return [
        (str(name), kind_of(item.get("type")) or Kind.STRING, str(item.get("value", "")))
        for name, item in plain.items()
        if isinstance(item, Mapping)
    ]


def _value(asked: str, found: Mapping[str, str | None]) -> str | None:
    """Return the text of a named group for `$name`, anything else as it is."""
    return found.get(asked[1:]) if asked.startswith("$") else asked


class RegexParser:
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
            for last, groups in self._candidates(text, lines, old):
                first = max(begin, last - self._lookahead + 1)
                if first > last:
                    continue
                record, matched = self._try(groups, "".join(lines[first : last + 1]))
                if matched:
                    begin = last + 1
                if record is not None:
                    found.append(record)
        keep = max(begin, len(lines) - self._lookahead + 1, 0)
        self._window = lines[keep:] if self._lookahead > 1 else []
        return found

    def _try(self, groups: Sequence[Group], window: str) -> tuple[MetricsLine | None, bool]:
        """Return the record of the first group that matches, and whether one did."""
        limit = self._limit
        for group in groups:
            if group.left_out or not all(literal in window for literal in group.literals):
                continue
            limit.count += 1
            try:
                limit.working = True
                match = group.pattern.match(window)
                limit.working = False
            except TooSlow:
                self._leave_out(group)
                continue
            if match is not None:
                return group.record(match, self._subid), True
        return None, False

    def _leave_out(self, group: Group) -> None:
        group.left_out = True
        self._complain(
            f"the regex of the group {group.name!r} in evaluation_metrics is too slow: it took "
            "more than half a second on one window of lines, so this group is left out."
        )

    def _candidates(
        self, text: str, lines: list[str], old: int
    ) -> Iterator[tuple[int, Sequence[Group]]]:
        """Yield lines with which a window may end that matches, and the groups to try there."""
        groups = [group for group in self._groups if not group.left_out]
        if not groups or any(not group.literals for group in groups):
            for last in range(old, len(lines)):
                yield last, groups
            return
        ends = list(accumulate(map(len, lines)))
        tried = old - 1
        streams = [_Occurrences(text, group.literals[0], ends) for group in groups]
        position = min(stream.next_line(0) for stream in streams)
        count = len(lines)
        while position < count:
            for last in range(max(position, tried + 1), min(position + self._lookahead, count)):
                yield last, groups
            tried = max(tried, position + self._lookahead - 1)
            position = min(stream.next_line(position + 1) for stream in streams)


class _Occurrences:
    """Where a literal occurs in a text, by the line in which it ends."""

    def __init__(self, text: str, literal: str, ends: list[int]) -> None:
        self._text, self._literal, self._ends = text, literal, ends
        self._line = -1

    def next_line(self, line: int) -> int:
        """Return the first line from `line` on in which the literal ends."""
        if self._line >= line:
            return self._line
        ends, length = self._ends, len(self._literal)
        begin = ends[line - 1] if 0 < line <= len(ends) else 0
        at = -1 if line >= len(ends) else self._text.find(self._literal, max(0, begin - length + 1))
        # `bisect_right` finds the line whose end is behind the literal's last character.
        self._line = len(ends) if at < 0 else bisect_right(ends, at + length - 1)
        return self._line


def _is_plain(text: str) -> bool:
    return text.isascii() and not any(c in text for c in "\x0b\x0c\x1c\x1d\x1e\r")


def _split(text: str) -> list[str]:
    lines = [f"{line}\n" for line in text.split("\n")]
    lines.pop()
    return lines
