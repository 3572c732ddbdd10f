"""Run by learners: one of them fails in the way that is named, once the others wait for it.

program.py HOW WHO [mpi] [handles]
"""

import os
import pathlib
import signal
import socket
import sys
import time

HOW, WHO = sys.argv[1], int(sys.argv[2])
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
SIGNALS = {"segv": signal.SIGSEGV, "abort": signal.SIGABRT, "kill": signal.SIGKILL,
           "term": signal.SIGTERM}  # fmt: skip


def fail(how: str) -> None:
    print("fails", flush=True)
    if how == "exception":
        raise ValueError("no labels")
    if how == "import":
        import not_there  # noqa: F401
    if how == "network":
        socket.create_connection(("127.0.0.1", 9))
    if how in SIGNALS:
        os.kill(os.getpid(), SIGNALS[how])
        time.sleep(60)
    if how == "watchdog":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    if how == "memory":
        _much = bytearray(1 << 30)
        time.sleep(60)
    if how == "hang":
        time.sleep(3600)
    os._exit(int(how))


def in_one_world(how: str) -> None:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    world.barrier()
    if RANK != WHO:
        world.recv(source=WHO)
    time.sleep(0.5)  # the others wait in MPI
    if how == "MPI_Abort":
        print("ready", flush=True)
        world.Abort(7)
    if how == "MPI error":
        world.send(1, dest=99)
    fail(how)


def alone(how: str, *, handles: bool) -> None:
    folder = pathlib.Path(os.environ["JOB_STATE_DIR"])
    if RANK != WHO:
        if handles:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        (folder / f"waits-{RANK}").touch()
        while True:
            time.sleep(0.05)
    while len(list(folder.glob("waits-*"))) < SIZE - 1:
        time.sleep(0.05)
    (folder / "fails").touch()
    fail(how)


if "mpi" in sys.argv[3:]:
    in_one_world(HOW)
else:
    alone(HOW, handles="handles" in sys.argv[3:])
