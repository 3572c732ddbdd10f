"""The cursor of independent processes: a locked file in which chunks are leases.

A chunk belongs to the learner that took it until that reports it done or dies, when it is given out
again. Each learner keeps its slot's byte locked for as long as it lives, and the kernel frees the
lock (psrv.cursor.leases). A stopped learner is alive. psrv.cursor.table describes the file, and why
a kill at any moment leaves it whole. Starts no MPI.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

from psrv.cursor.base import Chunk, CursorError, Range, check_taken, not_held, read_state
from psrv.cursor.leases import LeaseFile
from psrv.cursor.table import HELD, LEASES, NEXT, RECORD, REPORTED, USED, ranges

_LOOK_SHARE = 0.05
"""Share of the time in which all learners together may lock the file to look for the dead: over a
network each lock is a round trip, and each of N learners looks at the locks of N."""
_END_LOOK_SHARE = 0.5
"""The same share once there is nothing else to take."""
_LONGEST_S = 120.0
"""Longest pause after a look, however long that took."""
_SHORT_S = 0.1
"""Shorter pauses than this are skipped."""


@dataclass(frozen=True)
class LearnerEntry:
    """A learner's entry in a cursor's file."""

    learner: int
    """The number that it drew when it opened the file (`FileCursor.learner`)."""
    alive: bool
    reported: int
    """Chunks that it has reported done."""
    leases: tuple[Range, ...]
    """Positions that it holds."""


class FileCursor(LeaseFile):
    """A cursor for learners that open the same file; threads may share it, forks may not.

    Args:
        path: The file, made by the first learner; its folder exists. Nothing else in this process
            may open it: use `state` and `learners` to look into it.
        samples: Samples of the data set.
        passes: Passes over it.
        look_every_s: How often a learner looks for dead ones, in seconds; less often where that
            takes long, over a network with many learners. It also looks whenever there is nothing
            else to take.
    """

    def __init__(
        self, path: str | os.PathLike[str], samples: int, passes: int, *, look_every_s: float = 1.0
    ) -> None:
        self._look_every_s = look_every_s
        self._look_at = self._rest_until = 0.0
        self._total = samples * passes
        self._held: dict[Range, int] = {}  # with the word of the record
        super().__init__(path, samples, passes)

    # What learners call -------------------------------------------------------------------------

    def take(self, samples: int, done: Chunk | None = None) -> Chunk | None:
        """Take the next chunk, of `samples` samples or fewer; never past a pass's end.

        Args:
            samples: How many this learner can use, 1 or more.
            done: A chunk to report done in the same call, which saves a call of `done`.

        Returns:
            None if there is nothing to take now (see `finished`).
        """
        check_taken(samples)
        self._enter()
        try:
            return self._take(samples, done)
        except BaseException:
            self._changes = -1  # it may have happened or not: read our record before the next call
            raise
        finally:
            self._leave()

    def done(self, chunk: Chunk) -> None:
        """Report that this learner has trained on a chunk."""
        self._enter()
        try:
            held = self._range_of(chunk)
            self._clear_lease(self._table.edit(self._slot), held)
            self._table.commit()
            del self._held[held]
        except BaseException:
            self._changes = -1
            raise
        finally:
            self._leave()

    @property
    def finished(self) -> bool:
        """Return whether every chunk of every pass was reported done."""
        with self._alone():
            return self._table.state(self.samples, self.passes).done_samples == self._total

    @property
    def next(self) -> int:
        """Return the first position that was never given out."""
        with self._alone():
            return self._table.get(NEXT)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps; all leases count as not done."""
        with self._alone():
            return self._table.state(self.samples, self.passes).to_dict()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; no other learner may have the file open.

        The file is replaced whole, so a kill leaves the old one or the new one.
        """
        checked = read_state(state, self.samples, self.passes)
        with self._alone():
            self._replace(checked)
        self.close()
        self._attach()

    def __enter__(self) -> FileCursor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Who learners are ---------------------------------------------------------------------------

    @property
    def reported(self) -> int:
        """Return how many chunks this learner has reported done since it opened the file."""
        with self._alone():
            return self._table.record(self._slot)[1]

    def learners(self) -> list[LearnerEntry]:
        """Return all learners that the file knows, dead ones included."""
        with self._alone():
            return [
                LearnerEntry(abs(record[0]), self._is_alive(slot), record[1],
                             tuple(ranges(record[2:])))
                for slot, record in self._table.records()
            ]  # fmt: skip

    # What is given out --------------------------------------------------------------------------

    def _take(self, samples: int, done: Chunk | None) -> Chunk | None:
        held, table = self._held, self._table
        finished = None if done is None else self._range_of(done)
        if finished is None and len(held) == LEASES:
            raise CursorError(f"this learner holds {LEASES} chunks that are not done",
                              hint="report chunks done before taking more")  # fmt: skip
        self._look_for_dead(nothing_else=table.get(NEXT) >= self._total)
        to, words = table.edit(self._slot), table.words
        if finished is not None:
            self._clear_lease(to, finished)
        taken = start, stop = table.cut(to, samples, self.samples, self.passes)
        if not stop:
            if finished is not None:
                table.commit()
                del held[finished]
            return None
        word = to + HELD
        while words[word + 1]:
            word += 2
        words[word], words[word + 1] = taken
        table.commit()
        if finished is not None:
            del held[finished]
        held[taken] = word - to
        pass_number, first = divmod(start, self.samples)
        return Chunk(pass_number, first, first + stop - start)

    def _look_for_dead(self, *, nothing_else: bool) -> None:
        """Look for dead learners, if that is due."""
        now = monotonic()
        if now < (self._rest_until if nothing_else else self._look_at):
            return
        self._reclaim()
        all_looks_s = (monotonic() - now) * self._table.get(USED)
        self._look_at = now + max(self._look_every_s, min(all_looks_s / _LOOK_SHARE, _LONGEST_S))
        rest_s = min(all_looks_s / _END_LOOK_SHARE, _LONGEST_S)
        self._rest_until = now + rest_s if rest_s > _SHORT_S else now

    def _range_of(self, chunk: Chunk) -> Range:
        pass_number, start, stop = chunk
        first = pass_number * self.samples
        held = (first + start, first + stop)
        if held not in self._held:
            raise not_held(chunk)
        return held

    def _clear_lease(self, to: int, held: Range) -> None:
        words = self._table.words
        word = to + self._held[held]
        words[word] = words[word + 1] = 0
        words[to + REPORTED] += 1

    def _read_own_record(self) -> None:
        super()._read_own_record()
        record = self._table.record(self._slot)
        self._held = {
            (record[place], record[place + 1]): RECORD + place
            for place in range(2, len(record), 2)
            if record[place + 1]
        }
