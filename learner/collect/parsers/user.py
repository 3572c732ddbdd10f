"""A user's own parser: `parse(lines)` in a file of the code folder, run in a process of its own.

What it does wrong (an error, an endless loop, an exit, too much memory) ends that process only.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dlctl.contract import metrics
from dlctl.contract.ground.processes import end_child
from dlctl.contract.metrics import SUBID, MetricsLine
from learner.collect.parsers.record import EPOCH, ITERATION, Draft, Kind, LineParser

LIMIT_S = 10.0
"""How long it may take over the lines of one call."""
_LINES_OF_A_CALL = 1000
_MOST_ANSWER_BYTES = 64 << 20


class UserParser(LineParser):
    """Sends the lines of one file to the user's function, which loses its memory with its process.

    Args:
        complain: takes a sentence if the parser fails; it is then not used any more.
    """

    def __init__(
        self, file: Path, complain: Callable[[str], None], subid: str = "", limit_s: float = LIMIT_S
    ) -> None:
        self._file, self._complain, self._subid, self._limit_s = file, complain, subid, limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._failed = False

    def finish(self) -> list[MetricsLine]:
        """End the process, and return nothing: no record waits for a further line."""
        self._end()
        return []

    def feed(self, text: str) -> list[MetricsLine]:
        """Return the records of further lines."""
        lines = text.split("\n")[:-1]
        found: list[MetricsLine] = []
        for first in range(0, len(lines), _LINES_OF_A_CALL):
            if self._failed:
                break
            for plain in self._ask(lines[first : first + _LINES_OF_A_CALL]):
                line = _record(plain, self._subid)
                if line is not None:
                    found.append(line)
        return found

    def _ask(self, lines: list[str]) -> list[Any]:
        try:
            process = self._process or self._start()
            answer = self._exchange(process, json.dumps(lines).encode() + b"\n")
            found = json.loads(answer)
        except (OSError, ValueError) as error:
            self._give_up(str(error))
            return []
        if "error" in found:
            self._give_up(found["error"])
        records = found.get("records")
        return records if isinstance(records, list) else []

    def _start(self) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "learner.collect.parsers.user_process", str(self._file)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        return self._process

    def _exchange(self, process: subprocess.Popen[bytes], question: bytes) -> bytes:
        """Send a question, and return the answer's line."""
        assert process.stdin is not None and process.stdout is not None
        until = time.monotonic() + self._limit_s
        source, target = process.stdout.fileno(), process.stdin.fileno()
        os.set_blocking(target, False)  # a parser that hangs as it starts reads nothing
        answer, rest = bytearray(), memoryview(question)
        while not answer.endswith(b"\n"):
            left_s = until - time.monotonic()
            readable, writable, _ = select.select(
                [source], [target] if rest else [], [], max(0.0, left_s)
            )
            if left_s <= 0:
                raise ValueError(f"it took more than {self._limit_s:g} s")
            if writable:
                try:
                    rest = rest[os.write(target, rest) :]
                except BrokenPipeError:  # it has ended, and may have said why
                    rest = rest[:0]
            if readable:
                piece = os.read(source, 1 << 16)
                if not piece or len(answer) > _MOST_ANSWER_BYTES:
                    raise ValueError("it ended its process" if not piece else "it returns too much")
                answer += piece
        return bytes(answer)

    def _give_up(self, why: str) -> None:
        self._failed = True
        self._end()
        self._complain(f"the parser {self._file.name} is not used any more: {why}.")

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            end_child(process)
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):  # what was not yet written
                    if pipe is not None:
                        pipe.close()


def _record(plain: Any, subid: str) -> MetricsLine | None:
    """Return the record in a flat dictionary, as a line of metrics has it."""
    if not isinstance(plain, Mapping):
        return None
    group = plain.get(metrics.GROUP)
    draft = Draft(group if isinstance(group, str) else "")
    draft.text(SUBID, subid)
    for name, value in plain.items():
        if name in (metrics.STEP, ITERATION):
            draft.axis(ITERATION, Kind.INT, value)
        elif name == EPOCH:
            draft.axis(EPOCH, Kind.INT, value)
        elif name == metrics.TIME:
            draft.when(value)
        elif name != metrics.GROUP:
            kind = Kind.STRING if isinstance(value, str) else Kind.FLOAT
            draft.value(str(name), kind, value)
    return draft.line()
