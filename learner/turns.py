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

from psrv.cursor import Chunk
from psrv.cursor_file import FileCursor

_NAP_S, _LONGEST_NAP_S = 50e-6, 1e-3
_LOOK_FOR_DEAD_S = 0.05


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
    """

    def __init__(
        self,
        cursor: FileCursor,
        rank: int,
        learners: int,
        chunk_samples: int,
        irregular: Callable[[], bool],
        timeout_s: float,
    ) -> None:
        self._cursor = cursor
        self._rank = rank
        self._learners = learners
        self._chunk_samples = chunk_samples
        self._chunks = -(-cursor.samples // chunk_samples)
        """Of a pass."""
        self._irregular = irregular
        deadline = time.monotonic() + timeout_s
        while len(first := self._living()) < learners:
            if cursor.finished or irregular() or time.monotonic() > deadline:
                break
            time.sleep(_LOOK_FOR_DEAD_S)
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
        nap_s, look_at = _NAP_S, time.monotonic() + _LOOK_FOR_DEAD_S
        while self.regular and (next_ := self._cursor.next) != self.samples * self.passes:
            pass_number, place = divmod(next_, self.samples)
            number = pass_number * self._chunks + place // self._chunk_samples
            if number % self._learners == self._rank:
                return
            time.sleep(nap_s)
            nap_s = min(2 * nap_s, _LONGEST_NAP_S)
            if time.monotonic() > look_at:
                look_at = time.monotonic() + _LOOK_FOR_DEAD_S
                self.regular = self._living() == self._first and not self._irregular()

    def _living(self) -> set[int]:
        return {entry.learner for entry in self._cursor.learners() if entry.alive}
