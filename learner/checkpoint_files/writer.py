"""The writer process of one learner: `python -m learner.checkpoint_files.writer <descriptor>`.

It starts before MPI, torch's threads and CUDA. It reads orders as lines of JSON on standard input,
finds the bytes in the memory behind the descriptor, and answers in lines of JSON. When its learner
is done or gone (end of input) it finishes its order and ends. Never imports torch or MPI.
"""

from __future__ import annotations

import json
import mmap
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from learner.checkpoint_files.disk import Disk
from learner.checkpoint_files.publish import Order, ShareMissing, complete
from learner.checkpoint_files.share_format import Array
from learner.checkpoint_files.share_writer import write_part

_ALONE_S = 20.0
"""How long the writer waits for other learners' shares after its own learner is gone."""


class Input:
    """The messages from the learner."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._read = b""
        self.ended = False

    def next(self) -> dict[str, Any] | None:
        """Return the next message; None at the end of input."""
        while not self.ended and b"\n" not in self._read:
            self._receive()
        line, found, self._read = self._read.partition(b"\n")
        return dict(json.loads(line)) if found else None

    def within(self, timeout_s: float) -> dict[str, Any] | None:
        """Return a message if one comes within `timeout_s`, else None."""
        if self.ended:
            time.sleep(timeout_s)
            return None
        if b"\n" not in self._read:
            poll = select.poll()
            poll.register(self._descriptor, select.POLLIN)
            if poll.poll(timeout_s * 1000):
                self._receive()
        return self.next() if b"\n" in self._read else None

    def _receive(self) -> None:
        received = os.read(self._descriptor, 65536)
        self._read += received
        self.ended = not received


class Writer:
    """Carries out the orders of one learner."""

    def __init__(self, memory: int, orders: Input, disk: Disk) -> None:
        self._descriptor = memory
        self._orders = orders
        self._disk = disk
        self._memory: mmap.mmap | None = None
        self._alone_s = _ALONE_S
        self._alone_since: float | None = None

    def run(self) -> None:
        """Carry out orders until the learner is done or gone."""
        while (message := self._orders.next()) is not None and "end" not in message:
            if "save" in message:
                self._save(**message["save"])

    def _save(self, memory_bytes: int, order: dict[str, Any], **places: list[int]) -> None:
        began = time.monotonic()
        if self._memory is None or len(self._memory) != memory_bytes:
            self._memory = mmap.mmap(self._descriptor, memory_bytes, prot=mmap.PROT_READ)
        what = Order(**{**order, "root": Path(order["root"])})
        tree, pieces = (self._memory[slice(*places[f"{x}_place"])] for x in ("tree", "pieces"))
        problem = write_part(what, _arrays(self._memory, json.loads(pieces)), self._disk)
        _say(event="share", step=what.step, problem=problem, took_s=time.monotonic() - began)
        if what.rank != 0:
            return
        problem, warnings = complete(what, tree, self._disk, self._may_wait)
        _say(event="saved", step=what.step, problem=problem, warnings=warnings,
             took_s=time.monotonic() - began)  # fmt: skip

    def _may_wait(self, pause_s: float) -> None:
        message = self._orders.within(pause_s)
        if message is not None and "lost" in message:
            raise ShareMissing(message["lost"])
        if message is not None and "end" in message:
            self._orders.ended, self._alone_s = True, float(message["end"])
        if self._orders.ended:
            self._alone_since = self._alone_since or time.monotonic()
            if time.monotonic() - self._alone_since > self._alone_s:
                raise ShareMissing("the learners are gone")


def _arrays(memory: mmap.mmap, pieces: list[Any]) -> list[tuple[str, Array]]:
    return [
        (name, np.frombuffer(memory, np.dtype(dtype), count, offset))
        for name, dtype, count, offset in pieces
    ]


def _say(**event: Any) -> None:
    line = json.dumps(event).encode() + b"\n"
    try:
        os.write(1, line)  # short enough to be written whole
    except BrokenPipeError:
        return  # the learner is gone; its order is carried out nevertheless


def main(arguments: list[str]) -> int:
    """Run the writer; return its exit code."""
    # These signals are meant for the learner, which decides when this process ends.
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    Writer(int(arguments[0]), Input(0), Disk()).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
