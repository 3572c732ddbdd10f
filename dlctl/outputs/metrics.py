"""Read the metrics of a training: one list over all its attempts, learners and sources.

The reader keeps an offset for each file, so that a look brings only what is new.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from dlctl.contract import METRICS
from dlctl.contract.metrics import MetricsLine, Source, parse_line, parse_metrics_name
from dlctl.files.small_files import read_appended
from dlctl.series.merged import Entry, Merger, merge
from dlctl.series.replays import Origin
from dlctl.series.run import Run

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.outputs.looks import Looks
    from dlctl.record import Record
    from dlctl.transport import Transport

_LOOK_BYTES = 8 * 1024 * 1024
"""The most that a look reads of one file."""
_LONGEST_BYTES = 1024 * 1024
"""A longer line is no line of metrics."""


class MetricsFiles:
    """Follows the files of metrics below one job directory."""

    def __init__(self, job_dir: str, names: Sequence[str] = ("*.jsonl",)) -> None:
        self._folder = f"{job_dir}/{METRICS}"
        self._names = names
        self._offsets: dict[str, int] = {}
        self._rests: dict[str, bytes] = {}

    def news(self, transport: Transport) -> Iterator[tuple[Origin, MetricsLine]]:
        """Yield the lines that have arrived since the last call, by attempt and learner.

        Raises:
            TransferError: a file can't be read.
        """
        again = True
        while again:
            found = read_appended(transport, self._folder, self._names, self._offsets, _LOOK_BYTES)
            again = any(len(content) == _LOOK_BYTES for content in found.values())
            for name in sorted(found, key=_order):
                yield from self._lines(name, found[name])

    def _lines(self, name: str, content: bytes) -> Iterator[tuple[Origin, MetricsLine]]:
        self._offsets[name] = self._offsets.get(name, 0) + len(content)
        if (known := parse_metrics_name(name)) is None:
            return
        whole, _, rest = (self._rests.get(name, b"") + content).rpartition(b"\n")
        self._rests[name] = rest[-_LONGEST_BYTES:]
        origin = Origin(*known)
        for text in whole.split(b"\n"):
            if (line := parse_line(text)) is not None:
                yield origin, line


def _order(name: str) -> tuple[int, int, str]:
    attempt, rank, source = parse_metrics_name(name) or (0, 0, Source.LOOP)
    return attempt, rank, source.value


class MetricsReader:
    """Keeps a `Run` as new as its site tells."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._begin()

    def _begin(self) -> None:
        self.run = Run(self._record.training_id)
        self._files = MetricsFiles(self._record.job_dir)

    def refresh(self, transport: Transport) -> bool:
        """Bring what is new; return whether anything was.

        Raises:
            TransportError
        """
        found = False
        for origin, line in self._files.news(transport):
            self.run.add(origin, line)
            found = True
        if self.run.out_of_order:  # the file system showed an attempt's last lines late
            self._begin()
            for origin, line in self._files.news(transport):
                self.run.add(origin, line)
        return found


class EntryReader:
    """Collects new entries as they come; ones that a later attempt replaces were told already."""

    def __init__(self, record: Record) -> None:
        self._files = MetricsFiles(record.job_dir)
        self._merger = Merger()
        self._fresh: list[Entry] = []

    def refresh(self, session: Session, _: Record) -> bool:
        """Bring what is new; return whether anything was."""
        for origin, line in self._files.news(session.transport):
            if self._merger.add(origin, line):
                self._fresh.append(Entry(origin, line))
        return bool(self._fresh)

    def take(self) -> list[Entry]:
        """Return the entries that have come since the last call."""
        fresh, self._fresh = self._fresh, []
        return fresh


def follow_entries(
    looking: Looks[EntryReader], pause_s: float = 1.0
) -> Iterator[tuple[str, list[Entry]]]:
    """Yield new entries of each training until all have ended."""
    while True:
        ended = looking.ended
        for training_id in looking.look():
            if fresh := looking.readers[training_id].take():
                yield training_id, fresh
        if ended:  # and looked at once more since
            return
        if not looking.ended:
            time.sleep(pause_s)


def read_metrics(
    transport: Transport, record: Record, keep: Callable[[Origin], bool] = lambda _: True
) -> list[Entry]:
    """Return all entries of a training; steps that were done again have replaced earlier ones."""
    news = MetricsFiles(record.job_dir).news(transport)
    return merge((origin, line) for origin, line in news if keep(origin))
