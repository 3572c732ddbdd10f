"""The logs of a search: of its hub, nameserver, brokers, model and workers; and of one trial."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlctl.contract import search as names
from dlctl.files.small_files import read_appended
from dlctl.logs.reader import LogPiece

if TYPE_CHECKING:
    from dlctl.search.trials import TrialRow
    from dlctl.transport import Transport

_CHUNK_BYTES = 1 << 20
"""The most that a look reads of a file."""
_HUB = ("attempts/*/slurm.out", "attempts/*/learner-0.log")
_PROCESSES = f"{names.LOGS}/*.log"
_WORKERS = f"{names.WORKERS}/*/*.out"
_SOURCES = (
    (re.compile(r"attempts/(\d+)/slurm\.out"), "job"),
    (re.compile(r"attempts/(\d+)/learner-0\.log"), "hub"),
    (re.compile(rf"{names.LOGS}/(.+)\.log"), ""),
    (re.compile(rf"{names.WORKERS}/([^/]+)/(\d+)\.out"), "worker"),
    (re.compile(rf"{names.TASKS}/[^/]+/log"), "trial"),
    (re.compile(rf"{names.TASKS}/[^/]+/checkpoint/job/attempts/(\d+)/learner-(\d+)\.log"),
     "learner"),
)  # fmt: skip


def source_of(name: str) -> tuple[int, str]:
    """Return the attempt and the source of a log, by its name in the job directory."""
    for pattern, source in _SOURCES:
        if (match := pattern.fullmatch(name)) is None:
            continue
        if source == "worker":
            return 0, f"{match[1]}.{match[2]}"
        if source == "learner":
            return int(match[1]), f"learner-{match[2]}"
        if source in ("job", "hub"):
            return int(match[1]), source
        return 0, source or match[1]
    return 0, name


@dataclass
class Tail:
    """What was read of one log."""

    offset: int = 0
    is_read: bool = False
    """Whether the last look read it to its end."""
    rest: bytes = b""
    """A last line that lacks its end."""


class SearchLogReader:
    """Follows logs of a search, each by itself: nothing tells at which time a line was written.

    Args:
        globs: which logs.
    """

    def __init__(self, job_dir: str, globs: Sequence[str]) -> None:
        self._job_dir, self._globs = job_dir, list(globs)
        self._tails: dict[str, Tail] = {}
        self.advanced = False
        """Whether the last call of `news` read anything."""

    @property
    def has_more(self) -> bool:
        """Return whether the last look left a part of a log unread."""
        return any(not tail.is_read for tail in self._tails.values())

    @property
    def logs(self) -> int:
        """Return how many logs are known."""
        return len(self._tails)

    def news(self, transport: Transport, once: bool = False) -> list[LogPiece]:
        """Return the whole lines that have arrived since the last call.

        Args:
            once: whether to leave out logs that were read before, even if they have grown.
        """
        offsets = {
            name: None if once and tail.is_read else tail.offset
            for name, tail in self._tails.items()
        }
        found = read_appended(transport, self._job_dir, self._globs, offsets, _CHUNK_BYTES)
        self.advanced = bool(found)
        pieces = []
        for name in sorted(found, key=_order):
            tail = self._tails.setdefault(name, Tail())
            tail.offset += len(found[name])
            tail.is_read = len(found[name]) < _CHUNK_BYTES
            whole, newline, tail.rest = (tail.rest + found[name]).rpartition(b"\n")
            if newline:
                pieces.append(LogPiece(*source_of(name), whole + newline))
        return pieces

    def rest(self) -> list[LogPiece]:
        """Return last lines that never got their newline."""
        left = [
            LogPiece(*source_of(name), tail.rest + b"\n")
            for name, tail in self._tails.items() if tail.rest
        ]  # fmt: skip
        for tail in self._tails.values():
            tail.rest = b""
        return left


def search_logs(job_dir: str) -> SearchLogReader:
    """Return the reader of what hub, nameserver, brokers, model and workers print."""
    return SearchLogReader(job_dir, [*_HUB, _PROCESSES, _WORKERS])


def trial_logs(job_dir: str, row: TrialRow) -> SearchLogReader:
    """Return the reader of what one trial's program prints, in all its runs."""
    folder = f"{names.TASKS}/{row.id}"
    return SearchLogReader(
        job_dir, [f"{folder}/log", f"{folder}/checkpoint/job/attempts/*/learner-*.log"]
    )


def last_lines(transport: Transport, job_dir: str, row: TrialRow, lines: int) -> list[str]:
    """Return the end of what a trial's program has printed; of a training, its learner's log."""
    reader = trial_logs(job_dir, row)
    kept: list[str] = []
    while True:
        for piece in reader.news(transport, once=True):
            kept = [*kept, *piece.content.decode(errors="replace").splitlines()][-lines:]
        if not reader.advanced:
            break
    for piece in reader.rest():
        kept = [*kept, *piece.content.decode(errors="replace").splitlines()][-lines:]
    return kept


def runs_of(transport: Transport, job_dir: str, row: TrialRow) -> int | None:
    """Return how often a trial that is a training was begun; None for other trials."""
    folder = f"{names.TASKS}/{row.id}/checkpoint/job"  # the first attempt's plan is at the top
    globs = [f"{folder}/plan.json", f"{folder}/attempts/*/plan.json"]
    return len(read_appended(transport, job_dir, globs, {}, 1)) or None


def _order(name: str) -> tuple[int, str]:
    for place, (pattern, _) in enumerate(_SOURCES):
        if pattern.fullmatch(name):
            return place, name
    return len(_SOURCES), name
