"""The table in a cursor's file: how far the passes were given out, and each learner's leases.

In 64-bit words of the machine's byte order:

    0     identity: magic, samples, passes, check word
    64    header, copy 0; 96: header, copy 1; the one with the higher sequence number counts
    128   a record of 16 words for each learner (its slot): owner, chunks reported done, leases

An operation changes the header and one record, and must happen whole or not at all, at whatever
word its process is killed. So the header carries the record's new content: an operation writes
the copy that does not count, and its sequence number last. The record itself is written at the
beginning of the next operation, which may be another process's; until then the header's content is
what counts. (A kill keeps the order of the stores; a machine that loses its power may not.)

Leases are ranges of positions (psrv.cursor.base); (0, 0) is none. Nothing here locks anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from psrv.cursor.base import CursorError, CursorState, Range, first_chunk, make_state

if TYPE_CHECKING:
    from typing import TypeAlias


LEASES = 4
"""Chunks that a learner may hold at a time."""
SLOTS = 1024
"""Slots of a file, for living and dead learners."""

_MAGIC = int.from_bytes(b"DLcursr1", "little")
_HEADERS = (64, 96)
# Words of a header; the record of the slot holds what the operation left there.
SEQUENCE, NEXT, USED, CHANGES, SPARE_COUNT, SPARE = 0, 1, 2, 3, 4, 5
SLOT = SPARE + 2 * LEASES
RECORD = SLOT + 1
OWNER, REPORTED, HELD = RECORD, RECORD + 1, RECORD + 2
_END = HELD + 2 * LEASES
_RECORD_WORDS = _END - RECORD
_RECORDS, _STRIDE = 128, 16
WORDS = _RECORDS + SLOTS * _STRIDE
SIZE_BYTES = 8 * WORDS

Record: TypeAlias = "Sequence[int]"
"""Owner (> 0; < 0 once it was found dead, or was expelled), chunks reported done, and LEASES ×
(start, stop)."""


def slot_byte(slot: int) -> int:
    """Return the byte of the file that a slot's learner keeps locked while it lives."""
    return 8 * _record_at(slot)


def _record_at(slot: int) -> int:
    return _RECORDS + slot * _STRIDE


def ranges(flat: Iterable[int]) -> Iterator[Range]:
    """Yield the leases in start, stop, start, stop, …, without the empty ones."""
    numbers = iter(flat)
    return ((start, stop) for start, stop in zip(numbers, numbers) if stop)


class Table:
    """The table in writable words (a memoryview with format "q"); call `load` first.

    `at` is the offset of the current header. `edit` returns the offset of the next one; change
    words there, and `commit`.
    """

    def __init__(self, words: memoryview) -> None:
        self.words = words
        self.at, self._to = _HEADERS

    # Identity -----------------------------------------------------------------------------------

    def is_new(self) -> bool:
        """Return whether the table has no identity yet, or an incomplete one."""
        return self.words[0] == 0

    def create(self, state: CursorState) -> None:
        """Write a table that continues from a state, whose undone ranges wait in slots.

        The magic word comes last: without it the table is new.
        """
        flat = [number for part in state.undone for number in part]
        slots = -(-len(flat) // (2 * LEASES))
        if slots > SLOTS:
            raise CursorError(f"a cursor's file can't hold {len(state.undone)} undone chunks",
                              hint="take larger chunks")  # fmt: skip
        words, (first, second) = self.words, _HEADERS
        for slot in range(slots):
            part = flat[slot * 2 * LEASES : (slot + 1) * 2 * LEASES]
            for word, value in enumerate((-1, 0, *part), _record_at(slot)):
                words[word] = value
        words[first + SEQUENCE], words[second + SEQUENCE] = 1, 0
        words[first + NEXT], words[first + USED], words[first + SLOT] = state.next, slots, -1
        words[1], words[2], words[3] = state.samples, state.passes, state.samples ^ state.passes
        words[0] = _MAGIC

    def identity(self) -> tuple[int, int]:
        """Return (samples, passes)."""
        magic, samples, passes, check = self.words[:4]
        if magic != _MAGIC or check != samples ^ passes:
            raise CursorError("this is not a cursor's file, or it is damaged")
        return samples, passes

    def problem(self) -> str:
        """Return what is inconsistent in the table; "" if nothing is."""
        _, samples, passes, _ = self.words[:4]
        next_, used = self.get(NEXT), self.get(USED)
        if not (0 <= next_ <= samples * passes and 0 <= used <= SLOTS and self.get(SLOT) < used):
            return f"it has given out {next_} of {samples * passes} samples to {used} learners"
        before = 0
        for start, stop in sorted(self._undone()):
            if not before <= start < stop <= next_ or start // samples != (stop - 1) // samples:
                return (
                    f"positions {start} to {stop} are given out, before {before} or beyond {next_}"
                )
            before = stop
        return ""

    # Operations ---------------------------------------------------------------------------------

    def load(self) -> None:
        """Find the current header."""
        self.at, self._to = _HEADERS
        if self.words[self._to] > self.words[self.at]:
            self.at, self._to = self._to, self.at

    def get(self, word: int) -> int:
        """Return a word of the current header."""
        return self.words[self.at + word]

    def edit(self, slot: int) -> int:
        """Begin an operation on the header and a slot's record; return the offset to change."""
        words, at, to = self.words, self.at, self._to
        before = words[at + SLOT]
        if before == slot:
            words[to + 1 : to + _END] = words[at + 1 : at + _END]
            return to
        if before >= 0:  # the record that the last operation left for us
            there = _RECORDS + before * _STRIDE
            words[there : there + _RECORD_WORDS] = words[at + RECORD : at + _END]
        there = _RECORDS + slot * _STRIDE
        words[to + 1 : to + SLOT] = words[at + 1 : at + SLOT]
        words[to + SLOT] = slot
        words[to + RECORD : to + _END] = words[there : there + _RECORD_WORDS]
        return to

    def commit(self) -> None:
        """Make the operation's header the current one."""
        at, to = self.at, self._to
        self.words[to] = self.words[at] + 1
        self.at, self._to = to, at

    def cut(self, to: int, samples: int, pass_samples: int, passes: int) -> Range:
        """Take a range from the spare ones, or else a new one; (0, 0) if there is none."""
        words = self.words
        if words[to + SPARE_COUNT]:
            return self._cut_spare(to, samples)
        start = words[to + NEXT]
        pass_number, place = divmod(start, pass_samples)
        if pass_number >= passes:
            return 0, 0
        stop = words[to + NEXT] = start + first_chunk(pass_samples - place, samples)
        return start, stop

    def _cut_spare(self, to: int, samples: int) -> Range:
        words = self.words
        word = next(word for word in range(to + SPARE, to + SLOT, 2) if words[word + 1])
        start, end = words[word], words[word + 1]
        stop = start + first_chunk(end - start, samples)
        if stop < end:
            words[word] = stop
        else:
            words[word] = words[word + 1] = 0
            words[to + SPARE_COUNT] -= 1
        return start, stop

    def take_back(self, slot: int) -> None:
        """Make a dead learner's leases spare (when nothing else is), as an operation of its own."""
        to, words = self.edit(slot), self.words
        words[to + SPARE : to + SLOT] = words[to + HELD : to + _END]
        words[to + SPARE_COUNT] = len(list(ranges(words[to + HELD : to + _END])))
        for word in range(to + HELD, to + _END):
            words[word] = 0
        words[to + OWNER] = -abs(words[to + OWNER])
        words[to + CHANGES] += 1
        self.commit()

    def expel(self, slot: int) -> None:
        """Count a learner as dead, as an operation of its own; its leases are given out again."""
        if not self.get(SPARE_COUNT):
            self.take_back(slot)
            return
        to, words = self.edit(slot), self.words
        words[to + OWNER] = -abs(words[to + OWNER])
        words[to + CHANGES] += 1
        self.commit()

    def join(self, slot: int, owner: int) -> None:
        """Give a slot to a new learner, as an operation of its own."""
        to, words = self.edit(slot), self.words
        words[to + OWNER], words[to + REPORTED] = owner, 0
        words[to + USED] = max(words[to + USED], slot + 1)
        words[to + CHANGES] += 1
        self.commit()

    # Looking ------------------------------------------------------------------------------------

    def record(self, slot: int) -> Record:
        """Return a slot's record."""
        there = self.at + RECORD if self.get(SLOT) == slot else _record_at(slot)
        return list(self.words[there : there + _RECORD_WORDS])

    def records(self) -> list[tuple[int, Record]]:
        """Return (slot, record) of all slots that were used."""
        used = self.get(USED)
        words = list(self.words[_RECORDS : _record_at(used)])
        found: list[tuple[int, Record]] = [
            (slot, words[slot * _STRIDE : slot * _STRIDE + _RECORD_WORDS]) for slot in range(used)
        ]
        last = self.get(SLOT)
        if last >= 0:
            found[last] = (last, self.record(last))
        return found

    def state(self, samples: int, passes: int) -> CursorState:
        """Return how far the passes are: neither leases nor spare ranges count as done."""
        return make_state(samples, passes, self.get(NEXT), self._undone())

    def _undone(self) -> list[Range]:
        """Return the ranges that are spare or leased, to living or dead learners."""
        undone = list(ranges(self.words[self.at + SPARE : self.at + SLOT]))
        for _, record in self.records():
            undone += ranges(record[2:])
        return undone

    def close(self) -> None:
        """Release the memory."""
        self.words.release()
