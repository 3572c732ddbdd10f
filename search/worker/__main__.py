"""Run a worker: `python -m search.worker JOB_DIR --name NAME`; a broker may run beside it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from search.protocol.children import Child

# Slots start by exec: gRPC needs no handlers for forks, which would only disturb it.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from search.protocol.process import run_process
from search.worker.slot_pool import Resources
from search.worker.worker import Options, Worker

_SHARE_OF_MEMORY = 0.9


def main(arguments: list[str]) -> int:
    """Run a worker until it leaves."""
    parser = argparse.ArgumentParser(prog="python -m search.worker")
    parser.add_argument("job_dir", type=Path)
    parser.add_argument("--name", required=True)
    parser.add_argument("--slots", type=int, default=1, help="tasks at a time")
    parser.add_argument("--cpus", type=int, default=0, help="of all slots together; 0: all")
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--memory-bytes", type=int, default=0, help="0: nearly all")
    parser.add_argument("--label", action="append", default=[])
    parser.add_argument("--ends-at", type=float, default=0.0, metavar="UNIX_S")
    parser.add_argument("--idle-s", type=float, default=0.0, help="leave after this; 0: never")
    parser.add_argument("--grace-s", type=float, default=10.0, help="for tasks to save in")
    parser.add_argument("--echo", action="store_true", help="run nothing: for measurements")
    parser.add_argument("--broker", help="run a broker of this name beside the worker")
    flags = parser.parse_args(arguments)
    have = Resources(
        cpus=flags.cpus or max(flags.slots, len(os.sched_getaffinity(0))),
        gpus=flags.gpus,
        memory_bytes=flags.memory_bytes or _memory_bytes(),
        labels=tuple(flags.label),
    )
    options = Options(
        flags.name, flags.slots, have, flags.ends_at, flags.idle_s, flags.grace_s, flags.echo
    )
    with broker_beside(flags.job_dir, flags.broker):
        return run_process(f"worker {flags.name}", work(flags.job_dir, options))


async def work(job_dir: Path, options: Options) -> None:
    """Work until a signal says that the node is needed, or the worker leaves by itself."""
    worker = Worker(job_dir, options)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT):
        loop.add_signal_handler(number, worker.leaving.set)
    await worker.run()


def _memory_bytes() -> int:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(total * _SHARE_OF_MEMORY)


_LOOK_S = 0.1
_PATIENCE_S = 60.0


@contextlib.contextmanager
def broker_beside(job_dir: Path, name: str | None) -> Iterator[None]:
    """Keep a broker running. It ends in order after the body, or at once if this process dies."""
    if name is None:
        yield
        return
    arguments = ["search.broker", str(job_dir), "--name", name, "--until-eof"]
    broker, ending = Child(f"broker {name}", arguments, until_eof=True), threading.Event()

    def keep() -> None:
        while not ending.is_set():
            broker.look()
            ending.wait(_LOOK_S)

    keeper = threading.Thread(target=keep, name="broker", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        ending.set()
        keeper.join()
        broker.end(_PATIENCE_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
