"""One learner of the job that benchmarks.cursor times: RUNS FILE."""

from __future__ import annotations

import sys
from array import array

from mpi4py import MPI

from benchmarks.rounds import Candidate, measure, write
from psrv.cursor.mpi_window import WindowCursor

SAMPLES, PASSES, CHUNK = 1_000_003, 10**6, 64
COUNT = 50_000
"""Chunks that a learner takes in a round."""


def ours(cursor: WindowCursor) -> None:
    """Take chunks, each reported done with the next one."""
    take = cursor.take
    chunk = None
    for _ in range(COUNT):
        chunk = take(CHUNK, chunk)
    assert chunk is not None
    cursor.done(chunk)


class Counter:
    """A bare counter in a window of rank 0."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.window = MPI.Win.Allocate(8 if comm.rank == 0 else 0, 8, comm=comm)
        self._seen = array("q", [0])
        self._add = (MPI.buffer.frombuffer(array("q", [CHUNK])), 1, MPI.INT64_T)
        self._old = (MPI.buffer.frombuffer(self._seen), 1, MPI.INT64_T)

    def draw(self) -> None:
        """Draw under one lock that is held for good."""
        fetch_and_op, flush, add, old = (
            self.window.Fetch_and_op,
            self.window.Flush,
            self._add,
            self._old,
        )
        for _ in range(COUNT):
            fetch_and_op(add, old, 0, 0, MPI.SUM)
            flush(0)
            self._seen[0]

    def draw_locked(self) -> None:
        """Draw under a lock of its own each time."""
        for _ in range(COUNT):
            self.window.Lock(0, MPI.LOCK_SHARED)
            self.window.Fetch_and_op(self._add, self._old, 0, 0, MPI.SUM)
            self.window.Unlock(0)
            self._seen[0]


def main() -> None:
    """Measure, and write what came out."""
    runs, file = sys.argv[1:]
    comm = MPI.COMM_WORLD
    cursor, held, locked = WindowCursor(SAMPLES, PASSES, comm), Counter(comm), Counter(comm)
    held.window.Lock_all()
    times_s = measure(comm, [
        Candidate("ours", lambda: ours(cursor)),
        Candidate("floor", held.draw),
        Candidate("mpi_lock_per_op", locked.draw_locked),
    ], int(runs))  # fmt: skip
    held.window.Unlock_all()
    for window in (held.window, locked.window):
        window.Free()
    cursor.close()
    write(comm, file, **{name: round(comm.size * COUNT / s) for name, s in times_s.items()})


if __name__ == "__main__":
    main()
