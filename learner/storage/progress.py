"""The progress of a transfer, and the attempt's right to publish it.

That is in a file that the supervisor reads. Its first line is a sentence, the second the share that
has moved, and the third, while the store fails, how often a request has been tried.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl.contract.ground.amounts import format_bytes
from dlctl.contract.ground.whole_files import whole_file

if TYPE_CHECKING:
    from typing import TypeAlias


_EVERY_S = 0.5
_WINDOW_S = 10.0
_WORTH_TELLING_S = 1.0
_COMMON_TRIES = 2
"""A request that works when it is tried again at once is no news."""
_LONGEST = 300


Tick: TypeAlias = "Callable[[], None]"
"""Called at least once a second while data moves: keeps the job's heartbeat fresh, and raises
`Interrupted` once a request to end the attempt has come."""


class Interrupted(Exception):
    """A request to end the attempt interrupted the moving of data."""


@dataclass(frozen=True)
class Publication:
    """The right of one attempt to publish results."""

    attempt: int
    tick: Tick
    check: Tick
    """Called right before each publication; raises `Interrupted` if a later attempt has begun."""


@dataclass(frozen=True)
class Moving:
    """The content of a file of progress."""

    sentence: str = ""
    share: float | None = None
    """How much of the data has moved, from 0 to 1, if the script tells."""
    tries: int = 0
    """How often a request is tried that the store does not answer; 0 while all is well."""


def read_progress(file: Path) -> Moving:
    """Return what a file of progress tells; a script of the user's may write anything."""
    try:
        sentence, share, tries, *_ = [*file.read_text().splitlines(), "", "", ""]
    except (OSError, UnicodeDecodeError):
        return Moving()
    try:
        done = min(1.0, max(0.0, float(share)))
    except ValueError:
        done = None
    return Moving(sentence.strip()[:_LONGEST], done, int(tries) if tries.isdecimal() else 0)


class Progress:
    """Bytes, rate and time left of one store's transfer; all its threads may call it.

    Args:
        file: The file; None: nobody reads it.
        what: The sentence's beginning.
    """

    def __init__(self, file: Path | None, what: str) -> None:
        self._file = file
        self._what = what
        self._total = self._done = 0
        self._samples: deque[tuple[float, int]] = deque()
        self._due = 0.0
        self._trouble = ""
        self._tries = 0
        self._waits_since: float | None = None
        self._lock = threading.Lock()

    def begin(self, total_bytes: int) -> None:
        """Set how much there is to move."""
        with self._lock:
            self._total, self._done = total_bytes, 0
            self._samples.append((time.monotonic(), 0))
            self._tell(self._sentence())

    def add(self, size_bytes: int) -> None:
        """Note that so much more has moved; less than nothing: it has to move again."""
        with self._lock:
            self._done += size_bytes
            if size_bytes > 0:
                self._trouble, self._tries = "", 0
            if time.monotonic() >= self._due:
                self._tell(self._sentence())

    def wait(self, host: str) -> None:
        """Say that another process fetches the same data."""
        with self._lock:
            now = time.monotonic()
            self._waits_since = self._waits_since or now
            if now >= self._due:
                waited = f"for {now - self._waits_since:.0f} s"
                self._tell(f"{self._what}: waits {waited} for {host}, which fetches the same data")

    def notice(self, fault: str, tries: int, wait_s: float) -> None:
        """Say that requests fail and are repeated, until something moves again.

        Args:
            tries: The number of the next try.
            wait_s: How long until then.
        """
        with self._lock:
            if tries <= self._tries or (tries <= _COMMON_TRIES and wait_s < _WORTH_TELLING_S):
                return
            self._tries = tries
            self._trouble = f"trying again ({_ordinal(tries)} time, in {wait_s:.2g} s): {fault}"
            self._tell(self._sentence())

    def say(self, text: str) -> None:
        """Write the last sentence."""
        with self._lock:
            self._trouble, self._tries = "", 0
            self._tell(text)

    def _tell(self, sentence: str) -> None:
        if self._file is None:
            return
        self._due = time.monotonic() + _EVERY_S
        share = f"{min(1.0, self._done / self._total):.4f}" if self._total else ""
        tries = self._tries if self._trouble else ""
        with whole_file(self._file, sync=False) as file:
            file.write(f"{sentence}\n{share}\n{tries}\n".encode())

    def _sentence(self) -> str:
        now = time.monotonic()
        self._samples.append((now, self._done))
        while now - self._samples[0][0] > _WINDOW_S:
            self._samples.popleft()
        parts = (
            [f"{format_bytes(self._done)} of {format_bytes(self._total)}"] if self._total else []
        )
        if self._trouble:
            parts.append(self._trouble)
        else:
            parts += self._pace(now)
        return f"{self._what}: {', '.join(parts)}"

    def _pace(self, now: float) -> list[str]:
        then, before = self._samples[0]
        if now - then < 1.0 or self._done <= before:
            return []
        rate = (self._done - before) / (now - then)
        left_s = (self._total - self._done) / rate
        left = f"{left_s:.0f} s" if left_s < 90 else f"{left_s / 60:.0f} min"
        return [f"{format_bytes(rate)}/s", f"{left} left"]


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number // 10 != 1 else "th"
    return f"{number}{ending}"
