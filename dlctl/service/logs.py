"""Which lines of a training's logs are wanted, in the words of every face."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlctl.errors import Misused, RecordError
from dlctl.lifecycle import check_learner, refresh
from dlctl.logs.reader import LogReader, begin_at_tail, begin_since
from dlctl.logs.shown import shown
from dlctl.units import parse_moment

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.logs.reader import LogPiece
    from dlctl.logs.sieve import Sieve
    from dlctl.record import Record, RecordStore

_MOST_RANKS = 10_000


@dataclass(frozen=True)
class LinesWanted:
    """Some lines of a training's logs; by default all.

    Args:
        rank: Only these learners, as `0` or `0,2-5`.
        attempt: Only this attempt.
        since: Only lines written since then: `10m`, `14:30`, `2026-01-31T14:30`.
        tail: Only the last so many lines of each log, of the newest attempt unless one is named.
        grep: A regular expression that must be found in a line.

    Raises:
        Misused: one of them is none.
    """

    rank: str | None = None
    attempt: int | None = None
    since: str | None = None
    tail: int | None = None
    grep: str | None = None

    def __post_init__(self) -> None:
        _ = self.pattern, self._ranks, self._begin

    @property
    def pattern(self) -> re.Pattern[str] | None:
        """Return what must be found in a line."""
        try:
            return None if self.grep is None else re.compile(self.grep)
        except re.error as error:
            raise Misused(f"{self.grep}: {error}", option="--grep") from None

    def reader(
        self, session: Session, record: Record, store: RecordStore, *, begins: bool = True
    ) -> tuple[Record, LogReader]:
        """Return the record at its newest attempt, if that counts, and what reads the lines.

        Args:
            begins: Whether to begin where `tail` and `since` say.

        Raises:
            RecordError: there is no such learner or attempt.
        """
        record = self._checked(session, record, store)
        first = 1 if self.tail is None else record.attempt
        reader = LogReader(
            record.job_dir, self._ranks, first if self.attempt is None else self.attempt,
            only_attempt=self.attempt,
        )  # fmt: skip
        if begins and (begin := self._begin) is not None:
            begin_since(reader, session.transport, at=begin[0], ago_s=begin[1])
        if begins and self.tail is not None:
            begin_at_tail(reader, session.transport, self.tail)
        return record, reader

    def of(self, piece: LogPiece, sieve: Sieve | None = None) -> list[str]:
        """Return the lines of a piece that are wanted, as they were written.

        Args:
            sieve: What looks for `grep`, which may take for ever; None: this thread.
        """
        pattern = self.pattern
        text = piece.content.decode(errors="replace")
        lines = text.removesuffix("\n").split("\n") if text else []
        if pattern is None:
            return lines
        texts = [shown(line, colours=False) for line in lines]
        if sieve is None:
            return [line for line, text in zip(lines, texts, strict=True) if pattern.search(text)]
        return [line for line, is_in in zip(lines, sieve.found_in(texts), strict=True) if is_in]

    def _checked(self, session: Session, record: Record, store: RecordStore) -> Record:
        check_learner(session, record, max(self._ranks, default=None))
        if self.tail is None and self.attempt is None:
            return record
        record = refresh(session, [record], store)[0]
        if self.attempt is not None and self.attempt > record.attempt:
            there = "attempt 1" if record.attempt == 1 else f"attempts 1 to {record.attempt}"
            raise RecordError(
                f"{record.training_id} has no attempt {self.attempt}", hint=f"there is {there}"
            )
        return record

    @property
    def _ranks(self) -> list[int]:
        """Return the numbers of `0,2-5`."""
        found: list[int] = []
        for part in () if self.rank is None else self.rank.split(","):
            ends = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part)
            if ends is None:
                raise Misused(f"{self.rank}: numbers of learners, such as 0, or 0,2-5",
                              option="--rank")  # fmt: skip
            first, last = int(ends[1]), int(ends[2] or ends[1])
            if last < first or last - first + len(found) >= _MOST_RANKS:
                raise Misused(f"{self.rank}: {part.strip()} is no range", option="--rank")
            found += range(first, last + 1)
        return sorted({*found})

    @property
    def _begin(self) -> tuple[float | None, float] | None:
        """Return a time in Unix seconds, or None and how many seconds ago."""
        if (text := self.since) is None:
            return None
        try:
            return parse_moment(text)
        except ValueError as error:
            raise Misused(str(error), option="--since") from error
