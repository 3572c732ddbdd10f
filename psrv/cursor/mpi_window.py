"""The cursor of one MPI job: a 64-bit counter in a window of rank 0, and MPI's fetch-and-add.

The counter runs over all passes and is never set back while learners take, so that a pass's end
needs no agreement. Whatever a learner draws beyond a pass's end stays its own, for its next take.
Importing this module starts MPI.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

from mpi4py import MPI

from psrv.cursor.base import (
    Chunk,
    CursorError,
    Range,
    check_size,
    check_taken,
    make_state,
    not_held,
    read_state,
)

_WORD_BYTES = 8
_new_tuple = tuple.__new__


class WindowCursor:
    """A cursor for the learners of one communicator.

    `take` and `done` are each learner's own; making a cursor, `state`, `restore` and `close` are
    collective. A window dies with its job: go on from the state in the newest checkpoint.
    One thread of a learner may use it.

    Over a network whose atomics need the target's help (plain TCP), `take` waits until rank 0 is
    in an MPI call.
    """

    def __init__(self, samples: int, passes: int, comm: MPI.Intracomm = MPI.COMM_WORLD) -> None:
        check_size(samples, passes)
        self.samples = samples
        self.passes = passes
        self._comm = comm.Dup()
        size_bytes = _WORD_BYTES if self._comm.rank == 0 else 0
        self._window = MPI.Win.Allocate(size_bytes, _WORD_BYTES, comm=self._comm)
        self._window.Lock_all()
        self._closed = False
        self._step: int | None = None
        self._amount = array("q", [0])
        self._seen = array("q", [0])
        # Bound once, and wrapped by mpi4py's own buffers: what is looked up at each take is time.
        self._amount_spec: Any = (MPI.buffer.frombuffer(self._amount), 1, MPI.INT64_T)
        self._seen_spec: Any = (MPI.buffer.frombuffer(self._seen), 1, MPI.INT64_T)
        self._fetch_and_op, self._flush, self._sum = (
            self._window.Fetch_and_op, self._window.Flush, MPI.SUM,
        )  # fmt: skip
        self._held: list[Chunk] = []
        self._kept: list[Range] = []
        self._start_from(0, ())

    def take(self, samples: int, done: Chunk | None = None) -> Chunk | None:
        """Take the next chunk (see `Cursor`)."""
        if done is not None:
            try:
                self._held.remove(done)
            except ValueError:
                raise self._refusal(done) from None
        if samples != self._step:
            return self._take_slowly(samples)
        self._fetch_and_op(self._amount_spec, self._seen_spec, 0, 0, self._sum)
        self._flush(0)
        start = self._seen[0] - self._pass_began
        if start > self._last_start:
            return self._enter_pass(self._seen[0], samples)
        # Half the time of Chunk(...).
        chunk = _new_tuple(Chunk, (self._pass_number, start, start + samples))
        self._held.append(chunk)
        return chunk

    def done(self, chunk: Chunk) -> None:
        """Report that this learner has trained on a chunk."""
        try:
            self._held.remove(chunk)
        except ValueError:
            raise self._refusal(chunk) from None

    @property
    def finished(self) -> bool:
        """Return whether all chunks have been given out and this learner's are done."""
        return not self._held and not self._kept and self._to_range(self._counter()) is None

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps, the same for all; collective."""
        self._check_open()
        self._comm.Barrier()  # nobody takes any more
        drawn = self._counter() if self._comm.rank == 0 else 0
        held = [
            (chunk.pass_number * self.samples + chunk.start,
             chunk.pass_number * self.samples + chunk.stop) for chunk in self._held
        ]  # fmt: skip
        mine = (drawn, [*held, *self._kept])
        everyone = self._comm.allgather(mine)
        drawn = everyone[0][0]
        undone = [part for _, parts in everyone for part in parts]
        undone += self._ranges(drawn, self._undone_samples)
        next_ = max(drawn - self._undone_samples, 0) + self._first + self._undone_samples
        return make_state(self.samples, self.passes, next_, undone).to_dict()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; collective, and all give the same."""
        self._check_open()
        checked = read_state(state, self.samples, self.passes)
        self._comm.Barrier()
        self._start_from(checked.next, checked.undone)

    def close(self) -> None:
        """Free the window; collective."""
        if self._closed:
            return
        self._closed = True
        self._held.clear()
        self._step = None  # the next take asks _set_step
        self._window.Unlock_all()
        self._window.Free()
        self._comm.Free()

    def __enter__(self) -> WindowCursor:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        # Collective: a learner that fails must not wait here for others that go on.
        if kind is None:
            self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise CursorError("the cursor is closed already")

    def _refusal(self, chunk: Chunk) -> CursorError:
        self._check_open()
        return not_held(chunk)

    def _take_slowly(self, samples: int) -> Chunk | None:
        """Take what is kept, or the first chunk of another size."""
        self._check_open()
        check_taken(samples)
        if self._kept:
            return self._take_kept(samples)
        self._step = self._amount[0] = samples
        self._last_start = -1
        return self.take(samples)

    def _enter_pass(self, drawn: int, samples: int) -> Chunk | None:
        """Take a chunk that is not within the pass of the chunk before."""
        self._kept = self._ranges(drawn, drawn + samples)
        if not self._kept:
            return None
        position = drawn + self._first
        if drawn >= self._undone_samples:  # later ones are, too: remember this pass
            self._pass_number = position // self.samples
            self._pass_began = self._pass_number * self.samples - self._first
            self._last_start = self.samples - samples
        return self._take_kept(samples)

    def _start_from(self, next_: int, undone: tuple[Range, ...]) -> None:
        """Set the counter to 0: it runs over the undone ranges first, then on from `next_`."""
        self._undone = undone
        self._undone_samples = sum(stop - start for start, stop in undone)
        self._first = next_ - self._undone_samples
        self._kept = []
        self._held.clear()
        self._step = None
        # Of the pass in which the last chunk was: the counter's value at its beginning, and the
        # last place where a whole chunk begins.
        self._pass_number, self._pass_began, self._last_start = 0, 0, -1
        if self._comm.rank == 0:
            zero, seen = array("q", [0]), array("q", [0])
            self._window.Fetch_and_op(
                [zero, 1, MPI.INT64_T], [seen, 1, MPI.INT64_T], 0, 0, MPI.REPLACE
            )
            self._window.Flush(0)
        self._comm.Barrier()

    def _counter(self) -> int:
        self._check_open()
        nothing, seen = array("q", [0]), array("q", [0])
        self._window.Fetch_and_op(
            [nothing, 1, MPI.INT64_T], [seen, 1, MPI.INT64_T], 0, 0, MPI.NO_OP
        )
        self._window.Flush(0)
        return seen[0]

    def _take_kept(self, samples: int) -> Chunk:
        start, stop = self._kept[0]
        if stop - start > samples:
            stop = start + samples
            self._kept[0] = (stop, self._kept[0][1])
        else:
            self._kept.pop(0)
        if self._kept:
            self._step = None  # the next take goes slowly
        pass_number, place = divmod(start, self.samples)
        chunk = Chunk(pass_number, place, place + stop - start)
        self._held.append(chunk)
        return chunk

    def _ranges(self, drawn: int, end: int) -> list[Range]:
        """Return what the values drawn … end - 1 of the counter stand for."""
        found: list[Range] = []
        while drawn < end and (part := self._to_range(drawn)) is not None:
            start, stop = part[0], min(part[1], part[0] + end - drawn)
            found.append((start, stop))
            drawn += stop - start
        return found

    def _to_range(self, drawn: int) -> Range | None:
        """Return the position of a value of the counter, and where its range or pass ends."""
        for start, stop in self._undone:
            if drawn < stop - start:
                return start + drawn, stop
            drawn -= stop - start
        position = self._first + self._undone_samples + drawn
        if position >= self.samples * self.passes:
            return None
        return position, (position // self.samples + 1) * self.samples
