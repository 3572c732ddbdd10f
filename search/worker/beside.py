"""The broker beside a worker: it is started again when it dies, and ends once the worker has."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

FIRST_DELAY_S = 0.2
LONGEST_DELAY_S = 10.0
STEADY_S = 30.0
"""A broker that has lived for so long begins with the first delay again."""


@contextlib.contextmanager
def broker_beside(job_dir: Path, name: str | None) -> Iterator[None]:
    """Keep a broker running. It ends in order after the body, or at once if this process dies."""
    if name is None:
        yield
        return
    beside = _Beside(job_dir, name)
    beside.start()
    try:
        yield
    finally:
        beside.end()


class _Beside(threading.Thread):
    """Waits for the broker's end, and starts it again."""

    def __init__(self, job_dir: Path, name: str) -> None:
        super().__init__(name="broker", daemon=True)
        self._job_dir, self._broker = job_dir, name
        self._ending = threading.Event()
        self._lock = threading.Lock()
        """Held while a process is started, or told to end."""
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        delay_s = FIRST_DELAY_S
        while (process := self._begin()) is not None:
            began_at = time.monotonic()
            code = process.wait()
            if self._ending.is_set():
                return
            if time.monotonic() - began_at > STEADY_S:
                delay_s = FIRST_DELAY_S
            said = f"the broker {self._broker} ended with {code}"
            print(f"{said}: it is started again in {delay_s:g} s", flush=True)
            self._ending.wait(delay_s)
            delay_s = min(LONGEST_DELAY_S, 2 * delay_s)

    def _begin(self) -> subprocess.Popen[bytes] | None:
        command = [sys.executable, "-u", "-m", "search.broker", str(self._job_dir)]
        with self._lock:
            if self._ending.is_set():
                return None
            self._process = subprocess.Popen(
                [*command, "--name", self._broker, "--until-eof"], stdin=subprocess.PIPE
            )
            return self._process

    def end(self) -> None:
        """End the broker in order, and wait for that."""
        with self._lock:
            self._ending.set()
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.close()
        self.join()
