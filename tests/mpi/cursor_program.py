"""Run by test_cursor_mpi.py under mpiexec: every rank makes each check. Not a test by itself."""

from __future__ import annotations

import json
from collections import Counter

from mpi4py import MPI

from psrv.cursor.base import Chunk, CursorError, make_state
from psrv.cursor.mpi_window import WindowCursor

SAMPLES, PASSES = 97, 3


def positions(chunks: list[Chunk]) -> list[int]:
    return [
        chunk.pass_number * SAMPLES + place
        for chunk in chunks for place in range(chunk.start, chunk.stop)
    ]  # fmt: skip


def drain(cursor: WindowCursor, samples: int, chunk: Chunk | None = None) -> list[Chunk]:
    seen = []
    chunk = chunk or cursor.take(samples)
    while chunk is not None:
        assert 0 < chunk.samples <= samples
        assert 0 <= chunk.start < chunk.stop <= SAMPLES
        seen.append(chunk)
        chunk = cursor.take(samples, chunk)
    return seen


def everyone(comm: MPI.Intracomm, chunks: list[Chunk]) -> Counter[int]:
    return Counter(place for mine in comm.allgather(positions(chunks)) for place in mine)


def refused(call, words: str) -> None:
    try:
        call()
    except CursorError as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"nothing said {words!r}")


def check_every_sample_once(comm: MPI.Intracomm) -> None:
    """Each learner takes chunks of its own size, some larger than a pass."""
    for size in (1, 10, 97, 250):
        with WindowCursor(SAMPLES, PASSES, comm) as cursor:
            seen = drain(cursor, size + comm.rank)
            assert cursor.finished
            assert everyone(comm, seen) == Counter(range(SAMPLES * PASSES))
            assert cursor.state() == make_state(SAMPLES, PASSES, SAMPLES * PASSES, []).to_dict()


def check_restore(comm: MPI.Intracomm) -> None:
    """What was taken and not reported, and what a chunk drew beyond a pass's end, comes again."""
    cursor = WindowCursor(SAMPLES, PASSES, comm)
    done = []
    for _ in range(4):
        chunk = cursor.take(60)
        if chunk is not None:
            done.append(chunk)
            cursor.done(chunk)
    held = cursor.take(60)
    comm.Barrier()
    state = json.loads(json.dumps(cursor.state()))
    assert comm.allgather(state) == [state] * comm.size
    undone = Counter(place for part in state["undone"] for place in range(*part))
    history = everyone(comm, done)
    assert history + undone == Counter(range(state["next"]))
    if held is not None:
        assert not set(positions([held])) & set(history)
        cursor.done(held)  # after the checkpoint: lost
    cursor.restore(state)
    again = drain(cursor, 7)
    assert everyone(comm, again) + history == Counter(range(SAMPLES * PASSES))
    middle = cursor.state()
    cursor.close()
    other = WindowCursor(SAMPLES, PASSES + 1, comm)  # a longer training goes on from its end
    other.restore(middle)
    more = drain(other, 7)
    assert everyone(comm, more) == Counter(range(SAMPLES * PASSES, SAMPLES * (PASSES + 1)))
    other.close()


def check_a_state_in_the_middle_of_undone_ranges(comm: MPI.Intracomm) -> None:
    first = make_state(SAMPLES, PASSES, 150, [(0, 3), (20, 40), (90, 97), (97, 99)])
    cursor = WindowCursor(SAMPLES, PASSES, comm)
    cursor.restore(first.to_dict())
    done = [chunk for chunk in [cursor.take(5)] if chunk]
    for chunk in done:
        cursor.done(chunk)
    state = cursor.state()
    assert state["next"] == 150
    cursor.restore(state)
    seen = everyone(comm, done + drain(cursor, 4 + comm.rank))
    undone = [place for part in first.undone for place in range(*part)]
    assert seen == Counter([*undone, *range(150, SAMPLES * PASSES)])
    cursor.close()


def check_refusals(comm: MPI.Intracomm) -> None:
    refused(lambda: WindowCursor(0, 1, comm), "nothing to take")
    cursor = WindowCursor(SAMPLES, PASSES, comm)
    refused(lambda: cursor.take(0), "a chunk of 0 samples")
    refused(lambda: cursor.done(Chunk(0, 0, 5)), "not held")
    chunk = cursor.take(5)
    cursor.done(chunk)
    refused(lambda: cursor.take(5, chunk), "not held")
    wrong = make_state(SAMPLES + 1, PASSES, 0, []).to_dict()
    refused(lambda: cursor.restore(wrong), "of 98 samples")
    cursor.close()
    cursor.close()
    for call in (lambda: cursor.take(5), lambda: cursor.done(chunk), cursor.state,
                 lambda: cursor.finished, lambda: cursor.restore({})):  # fmt: skip
        refused(call, "closed already")


for comm in (MPI.COMM_SELF, MPI.COMM_WORLD):
    check_every_sample_once(comm)
    check_restore(comm)
    check_a_state_in_the_middle_of_undone_ranges(comm)
    check_refusals(comm)
MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank == 0:
    print("all checks passed by", MPI.COMM_WORLD.size)
