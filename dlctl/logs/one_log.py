"""One log of an attempt as it is read: what is not printed yet, and when it was written."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from math import inf
from typing import Any

from dlctl.contract import TIMES_SUFFIX, State, parse_notes

LONGEST_LINE_BYTES = 1024 * 1024
"""A line that is longer than this comes in parts."""
_NAME = re.compile(r"(attempts/(\d+)/(?:(server|learner)-(\d+)|slurm))(\.log|\.out|\.times)")
_KINDS = (None, "server", "learner")
"""In the order in which they are printed if they come at the same time."""
_ENDS = "|".join(state for state in State if state.final or state is State.STORING)
_END = re.compile(rf"^\d\d:\d\d:\d\d (?:{_ENDS}): ".encode(), re.MULTILINE)
"""Where the end begins in the job's output: everything that the learners say was said before."""

Block = tuple[float, tuple[int, Any], tuple[int, str], bytes]
"""Unix seconds by which it was written, the log's place among logs, attempt and source, lines."""


class OneLog:
    """A log as far as it was read, and the notes on when it grew.

    Args:
        name: Relative to the job directory.
        attempt: Of which it is.
        source: As a `LogPiece` names it.
        order: Its place among logs whose lines come at the same time.
        times_name: The file with the notes; empty: there are none.
    """

    def __init__(
        self, name: str, attempt: int, source: str, order: tuple[int, Any], times_name: str = ""
    ) -> None:
        self.name, self.attempt, self.source = name, attempt, source
        self.order, self.times_name = order, times_name
        self.turn = attempt if times_name else 0
        """Logs of a later turn wait; those without notes all come in the first."""
        self.offset = 0
        """How many bytes of the log were read."""
        self.times_offset = 0
        self.has_more = False
        """Whether the last look left a part of the log unread."""
        self._has_more_notes = False
        self._is_read = False
        self._is_cut = False
        """Whether the log is not read from its beginning."""
        self._at_line = 0
        self._text = b""
        """What was read last; up to `_shown` it was printed."""
        self._shown = self._lines = self._whole = 0
        """`_whole`: where the last whole line ends; `_lines`: what may be printed by its time."""
        self._end: int | None = None
        """Where the job's output begins to tell its end."""
        self._half_note = b""
        self._times, self._sizes = array("d"), array("q")

    @property
    def is_job(self) -> bool:
        """Return whether this is the job's output."""
        return self.source == "job"

    @property
    def waits_bytes(self) -> int:
        """Return how many bytes of whole lines wait to be printed."""
        return self._whole - self._shown

    @property
    def shown_bytes(self) -> int:
        """Return up to where the log was printed."""
        return self._begin + self._shown

    @property
    def is_done(self) -> bool:
        """Return whether everything that was found of the log has been printed."""
        return not self.has_more and self._shown == len(self._text)

    @property
    def is_read(self) -> bool:
        """Return whether a look read the log and its notes to their end."""
        return self._is_read and not self._has_more_notes

    @property
    def is_open(self) -> bool:
        """Return whether the last line lacks its end."""
        return self._whole < len(self._text)

    def skip(self, name: str, size_bytes: int, at_line: int = 0) -> None:
        """Begin to read the log, or its notes, at an offset, unless it begins later already.

        Args:
            at_line: Of a log, a later offset: what comes before the line that it is in is dropped.
        """
        if name == self.times_name:
            if size_bytes > self.times_offset:
                self.times_offset = size_bytes
                self._half_note = b"?"  # what is left of a line is no note
        elif max(size_bytes, at_line) > max(self.offset, self._at_line):
            self.offset, self._at_line, self._is_cut = size_bytes, at_line, True

    def needs_notes(self, ahead_bytes: int) -> bool:
        """Return whether the known notes end before the next bytes of the log do."""
        return not self._sizes or self._sizes[-1] < self.offset + ahead_bytes

    def add_notes(self, content: bytes, has_more: bool) -> None:
        """Take in the next notes."""
        self.times_offset += len(content)
        self._has_more_notes = has_more
        *lines, rest = (self._half_note + content).split(b"\n")
        self._half_note = rest[-100:]
        for time, size in parse_notes(lines):
            if not self._sizes or size > self._sizes[-1]:
                # A clock may be set back.
                self._times.append(max(time, self._times[-1] if self._times else time))
                self._sizes.append(size)

    def add(self, content: bytes, has_more: bool) -> None:
        """Take in the next bytes of the log, after their notes."""
        if self._at_line > self.offset and content:
            dropped = content.rfind(b"\n", 0, self._at_line - self.offset) + 1
            self.offset, self._at_line = self.offset + dropped, 0
            content = content[dropped:]
        self.offset += len(content)
        self.has_more = has_more
        self._is_read = not has_more
        if content:
            self._text = self._text[self._shown :] + content
            self._shown = 0
            self._whole = self._text.rfind(b"\n") + 1
            if len(self._text) - self._whole >= LONGEST_LINE_BYTES:
                self._whole = _character_end(self._text)
        self._lines = min(self._whole, self._end_in_text()) if self.is_job else self._whole
        useless = bisect_right(self._sizes, self._begin + self._shown)
        useless = min(useless, max(0, len(self._sizes) - 1))  # the last one dates the next
        del self._times[:useless], self._sizes[:useless]

    def _end_in_text(self) -> int:
        if self._end is None:
            found = _END.search(self._text, self._shown, self._whole)
            if found is None:
                return self._whole
            # Of an output without its beginning or times, nothing else was said before the
            # learners' lines.
            at = found.start() if self._sizes or not self._is_cut else self._shown
            self._end = self._begin + at
        return max(self._shown, self._end - self._begin)

    @property
    def _begin(self) -> int:
        """Where the text begins in the log."""
        return self.offset - len(self._text)

    @property
    def complete_until(self) -> float:
        """Return the time until which nothing can be missing among the blocks."""
        if self._end is not None:
            return inf  # the rest comes last, whenever it was written
        known = bisect_right(self._sizes, self.offset)
        if known < len(self._sizes):
            return self._times[known] if self.has_more else inf
        if self._has_more_notes:
            return self._times[-1] if self._times else 0.0
        return inf

    def blocks(self, until: float) -> Iterator[Block]:
        """Yield, and count as printed, the whole lines that were written by a time.

        What no note covers is the newest.
        """
        begin, text = self._begin, self._text
        first = bisect_right(self._sizes, begin + self._shown)
        notes = [*zip(self._times[first:], self._sizes[first:], strict=True)]
        searched = self._shown
        for time, size in [*notes, *([] if self._has_more_notes else [(inf, inf)])]:
            if time > until or self._shown >= self._lines:
                return
            at = int(min(size - begin, self._lines))
            cut = at if at == self._lines else text.rfind(b"\n", searched, at) + 1
            searched = at
            if cut > self._shown:
                content, self._shown = text[self._shown : cut], cut
                yield time, self.order, (self.attempt, self.source), content

    def rest(self, with_open_line: bool) -> bytes:
        """Return what was held back, and count it as printed."""
        end = len(self._text) if with_open_line else self._whole
        content, self._shown = self._text[self._shown : end], end
        self._whole = self._lines = end
        return content + b"\n" * (with_open_line and content[-1:] not in (b"", b"\n"))


def log_of_training(name: str) -> OneLog | None:
    """Return the log that a file is, or that its notes are on; None if it is not shown."""
    if (found := _NAME.fullmatch(name)) is None:
        return None
    order = (_KINDS.index(found[3]), int(found[4] or 0))
    source, suffix = (f"{found[3]}-{found[4]}", ".log") if found[3] else ("job", ".out")
    return OneLog(found[1] + suffix, int(found[2]), source, order, found[1] + TIMES_SUFFIX)


def _character_end(content: bytes) -> int:
    """Return where the last whole character of UTF-8 ends."""
    for back in range(1, min(4, len(content)) + 1):
        byte = content[-back]
        if byte & 0xC0 != 0x80:  # no continuation: here a character begins
            length = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(content) if length <= back else len(content) - back
    return len(content)
