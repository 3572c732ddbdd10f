"""Processes that are started again when they die."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from dlctl.contract.ground.processes import end_child

FIRST_DELAY_S = 0.2
LONGEST_DELAY_S = 10.0
STEADY_S = 30.0
"""A child that has lived for so long begins with the first delay again."""


@dataclass
class Child:
    """One of the hub's processes."""

    name: str
    arguments: list[str]
    """What follows `python -m`."""
    final: frozenset[int] = frozenset()
    """The exit codes after which it is not started again."""
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    started_at: float = 0.0
    start_at: float = 0.0
    delay_s: float = FIRST_DELAY_S
    log: IO[bytes] | None = field(default=None, repr=False)

    def look(self, logs: Path) -> int | None:
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
            self._start(logs)
        return None

    def _start(self, logs: Path) -> None:
        if self.log is None:
            logs.mkdir(parents=True, exist_ok=True)
            self.log = (logs / f"{self.name}.log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-m", *self.arguments],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
        )  # fmt: skip
        self.starts += 1
        self.started_at = time.monotonic()

    def end(self, patience_s: float) -> None:
        """End the process: SIGTERM, and SIGKILL after a while."""
        if self.process is not None:
            end_child(self.process, patience_s)
        if self.log is not None:
            self.log.close()


def _words(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
