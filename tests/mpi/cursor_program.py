"""Drain one FileCursor on all ranks: FOLDER. Run by test_exchange.py under mpiexec."""

import sys
from collections import Counter
from pathlib import Path

from mpi4py import MPI

from psrv.cursor.file import FileCursor

SAMPLES, PASSES = 97, 3


def main():
    comm = MPI.COMM_WORLD
    for size in (1, 10, 97, 250):  # some chunks are larger than a pass
        with FileCursor(Path(sys.argv[1]) / f"cursor-{size}", SAMPLES, PASSES) as cursor:
            comm.Barrier()  # all have joined: none finds the others' chunks done already
            seen = []
            chunk = cursor.take(size + comm.rank)
            while chunk is not None:
                assert 0 <= chunk.start < chunk.stop <= SAMPLES
                seen += [chunk.pass_number * SAMPLES + n for n in range(chunk.start, chunk.stop)]
                chunk = cursor.take(size + comm.rank, chunk)
            everyone = Counter(position for mine in comm.allgather(seen) for position in mine)
            assert everyone == Counter(range(SAMPLES * PASSES)), everyone
            assert cursor.finished
    if comm.rank == 0:
        print("every sample once on", comm.size)


main()
