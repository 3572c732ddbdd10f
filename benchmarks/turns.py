"""Sets of learners that take turns: each set runs one method, in processes of its own.

In a shared process the memory use of one method would affect another: glibc raises its threshold
for mapping blocks when large ones are freed. So each method has learners of its own. All sets exist
at once, and one works at a time. The parent sends each learner its orders over a separate socket.
Until then the learner sleeps in a read, not in a collective operation, which might spin.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from benchmarks.learners import PREFIX, Started, start_learners

_START_LIMIT_S = 120.0
_TURN_LIMIT_S = 300.0
_LEAVE_LIMIT_S = 30.0
_IDLE_CPU = 0.01
"""The share of a core that an idle learner may use before a warning is printed."""


class LearnerSet:
    """Learners that carry out orders (the parent's side); `start` makes one."""

    def __init__(
        self, name: str, folder: Path, started: Started, streams: list[TextIOWrapper]
    ) -> None:
        self.name = name
        self.size = len(streams)
        self.folder = folder
        """Where its learners leave files; deleted when they have ended."""
        self._started = started
        self._streams = streams

    def ask(self, order: str, argument: Any) -> list[dict[str, Any]]:
        """Have every learner carry out an order; return their answers once all have.

        Raises RuntimeError with the last output if one has ended or takes too long.
        """
        try:
            for stream in self._streams:
                stream.write(json.dumps([order, argument]) + "\n")
                stream.flush()
            return [json.loads(stream.readline()) for stream in self._streams]
        except (OSError, ValueError) as error:  # an empty line is no JSON
            raise self._started.failed(f"{self.name} did not answer") from error

    def time_s(self, order: str, argument: Any) -> float:
        """Return how long an order took, from the first learner's start to the last one's end."""
        answers = self.ask(order, argument)
        first: float = min(answer["begin"] for answer in answers)
        last: float = max(answer["end"] for answer in answers)
        return last - first

    def close(self) -> None:
        """Let the learners leave, and wait for them."""
        idle = [answer["idle_cpu"] for answer in self.ask("leave", None)]
        if max(idle) > _IDLE_CPU:
            print(f"{self.name}: used {max(idle):.1%} of a core in its sleep", file=sys.stderr)
        if (code := self._started.wait(_LEAVE_LIMIT_S)) != 0:
            raise self._started.failed(f"exit code {code}")


@contextlib.contextmanager
def start(name: str, learners: int, module: str, *arguments: str) -> Iterator[LearnerSet]:
    """Start learners that run `python -m module arguments… SOCKET` and call `Place.obey`.

    However it ends, no process and no file is left.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=PREFIX)))
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(folder / "orders"))
        listener.listen(learners)
        started = stack.enter_context(
            start_learners(folder, learners, module, *arguments, str(folder / "orders"))
        )
        streams = []
        for number in range(learners):
            stream = stack.enter_context(accept(listener, started))
            stream.write(f"{number} {learners}\n")
            stream.flush()
            streams.append(stream)
        learner_set = LearnerSet(name, folder, started, streams)
        yield learner_set
        learner_set.close()


def accept(listener: socket.socket, started: Started) -> TextIOWrapper:
    """Wait for a learner's connection; RuntimeError with the last output if none comes."""
    listener.settimeout(0.5)
    limit = time.monotonic() + _START_LIMIT_S
    while True:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            if started.process.poll() is None and time.monotonic() < limit:
                continue
            raise started.failed("a learner did not start") from None
        with connection:  # the stream keeps it open
            connection.settimeout(_TURN_LIMIT_S)
            return connection.makefile("rw")


class Place:
    """This learner among those of its set (the learner's side)."""

    def __init__(self, path: str) -> None:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            self._stream = connection.makefile("rw")
        self.number, self.size = map(int, self._stream.readline().split())
        self.folder = Path(path).parent
        """Where all learners of the set may leave files until the end."""

    def obey(self, orders: Mapping[str, Callable[[Any], object]]) -> None:
        """Carry out orders and report when each began and ended, until the order to leave.

        If an order returns a float, it is reported, too, as `value`.

        Times are from CLOCK_MONOTONIC, which all processes of a machine share.
        """
        slept_s = idle_cpu_s = 0.0
        while True:
            since, cpu = time.monotonic(), time.process_time()
            line = self._stream.readline()
            slept_s += time.monotonic() - since
            idle_cpu_s += time.process_time() - cpu  # of all threads
            if not line:
                sys.exit("nobody gives orders any more")
            order, argument = json.loads(line)
            if order == "leave":
                self._answer(idle_cpu=idle_cpu_s / slept_s)
                return
            begin = time.monotonic()
            measured = orders[order](argument)
            value = {"value": measured} if isinstance(measured, float) else {}
            self._answer(begin=begin, end=time.monotonic(), **value)

    def _answer(self, **fields: float) -> None:
        self._stream.write(json.dumps(fields) + "\n")
        self._stream.flush()
