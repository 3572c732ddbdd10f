"""A cursor whose chunks are taken in rank order, which makes runs of solvers in rounds repeatable.

In each round every learner trains on one chunk. As long as all of them live, chunk number n (over
all passes) belongs to rank n modulo learners, which waits for its turn; so each round has the
samples of one global batch, divided as the other loop divides it. As soon as a learner has died or
was restarted, chunks go to whichever learner asks first, for the rest of the attempt.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from psrv.cursor.base import Chunk, chunk_count
from psrv.cursor.file import FileCursor
from psrv.push.waiting import naps

_NAP_S, _LONGEST_NAP_S = 50e-6, 1e-3
_LOOK_FOR_DEAD_S = 0.05
_BEGIN_LOOKS, _LOOKS = 0.5, 0.05
"""Share of the time in which all learners together may lock the file to look who lives. Over a
network each lock is a round trip, and each of N learners looks at the locks of N."""
_PATIENCE = 4
"""Polling interval for each learner that comes before, in units of the time that one poll takes:
polls must not keep those learners from the file."""


class OrderedCursor:
    """A cursor for learners in rounds; everything but `take` is passed on.

    Args:
        cursor: Opened by all learners.
        chunk_samples: Samples that every learner takes.
        irregular: Returns whether the order no longer counts: a learner was restarted or given up,
            the cursor went on from a state with gaps, or a halt stops the others at their turn.
        timeout_s: How long to wait for the others.
        began: The position from which the attempt continues, the same for all. With another number
            of learners than before, or after an allreduce, it need not be where a chunk begins.
    """

    def __init__(
        self,
        cursor: FileCursor,
        rank: int,
        learners: int,
        chunk_samples: int,
        irregular: Callable[[], bool],
        timeout_s: float,
        began: int = 0,
    ) -> None:
        self._cursor, self._rank, self._learners = cursor, rank, learners
        self._chunk_samples = chunk_samples
        self._chunks = chunk_count(cursor.samples, chunk_samples)
        """Chunks of a pass."""
        self._first_pass, place = divmod(began, cursor.samples)
        left = chunk_count(cursor.samples - place, chunk_samples)
        self._left_out = self._chunks - place // chunk_samples - left
        """How many chunks that pass lacks."""
        self._irregular = irregular
        self._look_s = self._ask_s = float("inf")
        """The shortest time that a look for the dead, and a poll for the turn, have locked the
        file."""
        deadline, naps_s = time.monotonic() + timeout_s, naps(_LOOK_FOR_DEAD_S, float("inf"))
        while len(first := self._living()) < learners:
            if cursor.finished or irregular() or time.monotonic() > deadline:
                break
            time.sleep(min(next(naps_s), self._between_looks_s(_BEGIN_LOOKS)))
        self._first = first
        self.regular = len(first) == learners and not irregular()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)  # all but `take` is the cursor's

    def take(self, samples: int, done: Chunk | None = None) -> Chunk | None:
        """Take the next chunk, once it is this learner's turn."""
        if self.regular:
            self._wait()
        return self._cursor.take(samples, done)

    def _wait(self) -> None:
        naps_s, heed_at = naps(_NAP_S, float("inf")), time.monotonic() + _LOOK_FOR_DEAD_S
        look_at = heed_at
        while self.regular and (next_ := self._next()) != self.samples * self.passes:
            before = (self._rank - self._number(next_)) % self._learners
            if not before:
                return
            longest_s = max(_LONGEST_NAP_S, _PATIENCE * before * self._ask_s)
            time.sleep(min(next(naps_s), longest_s))
            if (
                time.monotonic() > heed_at
            ):  # this does not lock the file, and a halt has little time
                heed_at = time.monotonic() + _LOOK_FOR_DEAD_S
                self.regular = not self._irregular()
            if self.regular and time.monotonic() > look_at:
                self.regular = self._living() == self._first
                look_at = time.monotonic() + self._between_looks_s(_LOOKS)

    def _number(self, position: int) -> int:
        """Return the number of the chunk that begins at a position.

        No number may be left out: its learner would wait for its next turn, and the learner of that
        turn would wait for it in the round.
        """
        pass_number, place = divmod(position, self.samples)
        number = pass_number * self._chunks + place // self._chunk_samples
        return int(number - self._left_out * (pass_number > self._first_pass))

    def _between_looks_s(self, share: float) -> float:
        """Return how long to wait after a look for the dead."""
        return max(_LOOK_FOR_DEAD_S, self._look_s * self._learners / share)

    def _next(self) -> int:
        next_ = self._cursor.next
        self._ask_s = min(self._ask_s, self._cursor.held_s)
        return next_

    def _living(self) -> set[int]:
        entries = self._cursor.learners()
        self._look_s = min(self._look_s, self._cursor.held_s)
        return {entry.learner for entry in entries if entry.alive}
