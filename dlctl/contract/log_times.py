"""Notes of when a log grew, beside the log: `dlctl logs` merges the logs of an attempt by them.

A note is a line `<Unix seconds, with ms> <size in bytes>`: by that time the log had that size.
Notes may be missing, and a line may be torn by a full disk.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

TIMES_SUFFIX = ".times"
_NOTE = re.compile(rb"(\d{1,12}\.\d{3}) (\d{1,18})")


def times_file(log: str) -> str:
    """Return the notes of when a log grew, by which `dlctl logs` merges the logs of an attempt.

    The supervisor writes it for its own output and the servers', a watchdog for its learner's.
    """
    return log.rpartition(".")[0] + TIMES_SUFFIX


def note_line(time_s: float, size_bytes: int) -> str:
    """Return the note of a log's size."""
    return f"{time_s:.3f} {size_bytes}\n"


def parse_notes(lines: Iterable[bytes]) -> Iterator[tuple[float, int]]:
    """Yield the time and the size of each note; skip lines that are damaged."""
    for line in lines:
        if found := _NOTE.fullmatch(line):
            yield float(found[1]), int(found[2])
