"""A cursor whose chunks are taken in rank order: runs of solvers in rounds are the same each time.

In each round every learner trains on one chunk. As long as all of them live, the chunk with the
number n (of all passes) is for the learner of rank n modulo learners, which waits for its turn; so
each round has the samples of one global batch, divided as the other loop divides it. As soon as one
has died, or has taken the place of one that did, chunks go to whoever comes, for good.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from psrv.cursor.base import Chunk
from psrv.cursor.chunking import part_count
from psrv.cursor.file import FileCursor

_NAP_S, _LONGEST_NAP_S = 50e-6, 1e-3
_LOOK_FOR_DEAD_S = 0.05
_BEGIN_LOOKS, _LOOKS = 0.5, 0.05
"""Share of the time in which all learners together may have the file locked to look who lives. Over
a network each lock is a round trip, and each of N learners looks at the locks of N."""
_PATIENCE = 4
"""So many times what it takes to ask whose turn it is a learner waits for each that is before it:
they are not to be kept off by those who ask."""


class CursorInTurn:
    """A cursor of learners in rounds; all but `take` is the cursor's own.

    Args:
        cursor: opened by all learners.
        rank: this learner's.
        learners: how many there are.
        chunk_samples: what every learner takes.
        irregular: tells that turns do not count: a learner was started again or given up, the
            cursor has gone on from a state with gaps, or a halt: the others stop at theirs.
        timeout_s: how long the others are waited for.
        began: the position from which the attempt goes on, the same for all. With another number of
            learners than before, or after an allreduce, it need not be where a chunk begins.
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
        self._cursor = cursor
        self._rank = rank
        self._learners = learners
        self._chunk_samples = chunk_samples
        self._chunks = part_count(cursor.samples, chunk_samples)
        """Of a pass."""
        self._first_pass, place = divmod(began, cursor.samples)
        left = part_count(cursor.samples - place, chunk_samples)
        self._left_out = self._chunks - place // chunk_samples - left
        """How many chunks of that pass there will not be."""
        self._irregular = irregular
        self._look_s = self._ask_s = float("inf")
        """How long a look who lives, and to ask whose turn it is, keep others off at least."""
        deadline, nap_s = time.monotonic() + timeout_s, _LOOK_FOR_DEAD_S
        while len(first := self._living()) < learners:
            if cursor.finished or irregular() or time.monotonic() > deadline:
                break
            time.sleep(nap_s)
            nap_s = min(2 * nap_s, self._between_looks_s(_BEGIN_LOOKS))
        self._first = first
        self.regular = len(first) == learners and not irregular()

    @property
    def samples(self) -> int:
        """Return the samples of one pass."""
        return self._cursor.samples

    @property
    def passes(self) -> int:
        """Return how many passes are given out."""
        return self._cursor.passes

    @property
    def finished(self) -> bool:
        """Return whether every chunk of every pass was reported done."""
        return self._cursor.finished

    def take(self, samples: int, done: Chunk | None = None) -> Chunk | None:
        """Take the next chunk, once it is this learner's turn."""
        if self.regular:
            self._wait()
        return self._cursor.take(samples, done)

    def done(self, chunk: Chunk) -> None:
        """Report that this learner has trained on a chunk."""
        self._cursor.done(chunk)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return self._cursor.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self._cursor.restore(state)

    def close(self) -> None:
        """Give up what is held."""
        self._cursor.close()

    def _wait(self) -> None:
        nap_s, heed_at = _NAP_S, time.monotonic() + _LOOK_FOR_DEAD_S
        look_at = heed_at
        while self.regular and (next_ := self._next()) != self.samples * self.passes:
            before = (self._rank - self._number(next_)) % self._learners
            if not before:
                return
            time.sleep(nap_s)
            nap_s = min(2 * nap_s, max(_LONGEST_NAP_S, _PATIENCE * before * self._ask_s))
            if time.monotonic() > heed_at:  # it keeps nobody off, and a halt has little time
                heed_at = time.monotonic() + _LOOK_FOR_DEAD_S
                self.regular = not self._irregular()
            if self.regular and time.monotonic() > look_at:
                self.regular = self._living() == self._first
                look_at = time.monotonic() + self._between_looks_s(_LOOKS)

    def _number(self, position: int) -> int:
        """Return the number of the chunk that begins at a position.

        None is left out: its learner would wait for the next turn, and whose turn that is, in the
        round, for it.
        """
        pass_number, place = divmod(position, self.samples)
        number = pass_number * self._chunks + place // self._chunk_samples
        return number - self._left_out * (pass_number > self._first_pass)

    def _between_looks_s(self, share: float) -> float:
        """Return how long to wait after a look who lives."""
        return max(_LOOK_FOR_DEAD_S, self._look_s * self._learners / share)

    def _next(self) -> int:
        next_ = self._cursor.next
        self._ask_s = min(self._ask_s, self._cursor.held_s)
        return next_

    def _living(self) -> set[int]:
        entries = self._cursor.learners()
        self._look_s = min(self._look_s, self._cursor.held_s)
        return {entry.learner for entry in entries if entry.alive}
