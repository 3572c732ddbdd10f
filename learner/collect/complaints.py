"""What the collector says in the learner's log: each thing once, in one sentence."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_MOST = 10
"""Further sentences are dropped."""


class Complaints:
    """Sentences for the learner's log."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._said: set[str] = set()

    def say(self, sentence: str) -> None:
        """Append a sentence, unless it was said before."""
        if sentence in self._said or len(self._said) >= _MOST:
            return
        self._said.add(sentence)
        line = f"dlctl: WARNING: {sentence}\n".encode("utf-8", "backslashreplace")
        with contextlib.suppress(OSError):  # without O_CREAT: a removed directory stays away
            descriptor = os.open(self._log, os.O_RDWR | os.O_APPEND)
            try:
                size = os.fstat(descriptor).st_size
                begun = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
                os.write(descriptor, b"\n" + line if begun else line)
            finally:
                os.close(descriptor)
