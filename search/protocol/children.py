"""Processes that are started again when they die."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from dlctl.contract.ground.processes import end_child

FIRST_DELAY_S = 0.2
LONGEST_DELAY_S = 10.0
STEADY_S = 30.0
"""A child that has lived for so long begins with the first delay again."""


@dataclass
class Child:
    """One of a hub's or a worker's processes."""

    name: str
    arguments: list[str]
    """The words after `python -m`."""
    logs: Path | None = None
    """The folder of its log; None: it writes where this process does."""
    final: frozenset[int] = frozenset()
    """The exit codes after which it is not started again."""
    until_eof: bool = False
    """Whether the end of its standard input asks it to end, and not SIGTERM."""
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    started_at: float = 0.0
    start_at: float = 0.0
    delay_s: float = FIRST_DELAY_S

    def look(self) -> int | None:
        """Start the process if it is due; return its exit code if that is final."""
        now = time.monotonic()
        if self.process is not None:
            code = self.process.poll()
            if code is None:
                return None
            if code in self.final:
                return code
            lived_s = now - self.started_at
            self.delay_s = FIRST_DELAY_S if lived_s > STEADY_S else self.delay_s
            sys.stderr.write(
                f"dlctl: the {self.name} ended with {_words(code)} after {lived_s:.1f} s; "
                f"it is started again in {self.delay_s:.1f} s\n"
            )
            self.process, self.start_at = None, now + self.delay_s
            self.delay_s = min(LONGEST_DELAY_S, 2 * self.delay_s)
        if now >= self.start_at:
            self._start()
        return None

    def _start(self) -> None:
        with contextlib.ExitStack() as stack:
            log = None
            if self.logs is not None:
                self.logs.mkdir(parents=True, exist_ok=True)
                log = stack.enter_context((self.logs / f"{self.name}.log").open("ab"))
            self.process = subprocess.Popen(
                [sys.executable, "-u", "-m", *self.arguments], stdout=log, stderr=log,
                stdin=subprocess.PIPE if self.until_eof else subprocess.DEVNULL,
            )  # fmt: skip
        self.starts += 1
        self.started_at = time.monotonic()

    def end(self, patience_s: float) -> None:
        """Ask the process to end, and kill it after a while."""
        if self.process is not None:
            if self.process.stdin is not None:
                self.process.stdin.close()
            end_child(self.process, patience_s, ask=not self.until_eof)


def _words(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
