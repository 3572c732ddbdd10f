"""Read the metrics of a training: one list over all its attempts, learners and sources.

The reader keeps an offset for each file, so that a look brings only what is new. It opens long
files by their bins (`dlctl.outputs.metrics.bins`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlctl.contract import METRICS
from dlctl.contract.measured.pyramid import Bin
from dlctl.contract.metrics import MetricsLine, Source, parse_line, parse_metrics_name
from dlctl.files.ranges import read_sizes
from dlctl.files.small_files import read_appended
from dlctl.outputs.metrics.bins import LongFile, is_fine, is_long, open_long, refine
from dlctl.series.merged import Entry, Merger, merge
from dlctl.series.replays import Origin
from dlctl.series.run import Run

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.outputs.looks import Looks
    from dlctl.record import Record
    from dlctl.transport import Transport

FILES = "*.jsonl"
"""The files that hold lines."""
_LOOK_BYTES = 8 * 1024 * 1024
"""The most that a look reads of one file."""
_LONGEST_BYTES = 1024 * 1024
"""A longer line is no line of metrics."""
_LONG_BYTES = 512 * 1024
"""A longer file is opened by its bins."""
BUDGET_BYTES = 256 * 1024
"""Of the bins of each shape of a file."""


@dataclass(frozen=True)
class Block:
    """Bins of one series of a file, in the place of its lines."""

    group: str
    name: str
    bins: list[Bin]


class MetricsFiles:
    """Follows the files of metrics below one job directory.

    Args:
        budget_bytes: of bins; None reads all lines of long files, too.
    """

    def __init__(self, job_dir: str, budget_bytes: int | None = None) -> None:
        self.folder = f"{job_dir}/{METRICS}"
        self._budget_bytes = budget_bytes
        self._offsets: dict[str, int] = {}
        self._rests: dict[str, bytes] = {}
        self.long: dict[str, LongFile] = {}
        self._opened = budget_bytes is None

    @property
    def offsets(self) -> dict[str, int] | None:
        """Return how far each file was read; None before the first look."""
        return self._offsets if self._opened else None

    def news(
        self, transport: Transport, found: Mapping[str, bytes] | None = None
    ) -> Iterator[tuple[Origin, MetricsLine | Block]]:
        """Yield what has arrived since the last call, by attempt and learner.

        Args:
            found: What another look has read behind the `offsets`, if there was one.

        Raises:
            TransferError: a file can't be read.
        """
        waiting = {} if self._opened else self._open(transport)
        arrived: dict[str, list[bytes]] = {name: [] for name in waiting}
        again = True
        while again:  # a file comes whole before those of later attempts
            fresh = found
            if fresh is None:
                fresh = read_appended(transport, self.folder, [FILES], self._offsets, _LOOK_BYTES)
            again = found is None and any(len(c) == _LOOK_BYTES for c in fresh.values())
            for name, content in fresh.items():
                self._offsets[name] = self._offsets.get(name, 0) + len(content)
                arrived.setdefault(name, []).append(content)
        for name in sorted(arrived, key=_order):
            if (file := waiting.get(name)) is not None:
                yield from self._blocks(file)
            for content in arrived[name]:
                yield from self._lines(name, content)

    def _open(self, transport: Transport) -> dict[str, LongFile]:
        assert self._budget_bytes is not None
        self._opened = True
        sizes = read_sizes(transport, self.folder, ["*"])
        names = [n for n in sizes if parse_metrics_name(n) and is_long(n, sizes, _LONG_BYTES)]
        self.long = open_long(transport, self.folder, names, sizes, self._budget_bytes)
        self._offsets = {name: file.size_bytes for name, file in self.long.items()}
        return dict(self.long)

    def _blocks(self, file: LongFile) -> Iterator[tuple[Origin, MetricsLine | Block]]:
        """Yield what opens a long file: its events, its bins, its last lines."""
        origin = _origin(file.name)
        assert origin is not None
        for event in file.events:
            yield origin, event
        for series, bins in file.bins.items():
            if series >= len(file.names):
                continue  # the name of a new series comes with its lines
            named = file.names[series]
            yield origin, Block(named.group, named.name, bins)
        first, _, rest = file.tail.partition(b"\n")
        self._rests[file.name] = b""
        told = len(file.events)
        for _, line in self._lines(file.name, rest if len(file.tail) else first):
            if isinstance(line, MetricsLine) and (not line.event or not told):
                yield origin, file.covered(line)

    def _lines(self, name: str, content: bytes) -> Iterator[tuple[Origin, MetricsLine | Block]]:
        if (origin := _origin(name)) is None:
            return
        whole, _, rest = (self._rests.get(name, b"") + content).rpartition(b"\n")
        self._rests[name] = rest[-_LONGEST_BYTES:]
        for text in whole.split(b"\n"):
            if (line := parse_line(text)) is not None:
                yield origin, line


def _origin(name: str) -> Origin | None:
    known = parse_metrics_name(name)
    return None if known is None else Origin(*known)


def _order(name: str) -> tuple[int, int, str]:
    attempt, rank, source = parse_metrics_name(name) or (0, 0, Source.LOOP)
    return attempt, rank, source.value


class MetricsReader:
    """Keeps a `Run` as new as its site tells.

    Args:
        budget_bytes: of the bins by which it opens each long file.
    """

    def __init__(self, record: Record, budget_bytes: int = BUDGET_BYTES) -> None:
        self._record, self._budget_bytes = record, budget_bytes
        self._begin()

    def _begin(self) -> None:
        self.run = Run(self._record.training_id)
        self._files = MetricsFiles(self._record.job_dir, self._budget_bytes)

    @property
    def offsets(self) -> dict[str, int] | None:
        """Return how far each file was read; None before the first look."""
        return self._files.offsets

    def refresh(self, transport: Transport, found: Mapping[str, bytes] | None = None) -> bool:
        """Bring what is new; return whether anything was.

        Args:
            found: What another look has read behind the `offsets`, if there was one.

        Raises:
            TransportError
        """
        found_any = self._take(transport, found)
        if self.run.out_of_order:  # the file system showed an attempt's last lines late
            self._begin()
            self._take(transport)
        return found_any

    def refine(self, transport: Transport, begin: float, end: float, width: int) -> bool:
        """Bring finer bins of a window of steps; return whether there are any.

        Raises:
            TransportError
        """
        found = False
        for file in self._files.long.values():
            origin = _origin(file.name)
            if origin is None or origin.source is Source.NODE:
                continue
            finer = refine(transport, self._files.folder, file, begin, end, width)
            for named, bins in finer.items():
                self.run.refine(origin, named.group, named.name, bins)
                found = True
        return found

    def is_fine(self, begin: float, end: float, width: int) -> bool:
        """Return whether a window of steps has so many bins of each curve, or all there are."""
        return all(is_fine(file, begin, end, width) for file in self._files.long.values())

    def _take(self, transport: Transport, found: Mapping[str, bytes] | None = None) -> bool:
        found_any = False
        for origin, news in self._files.news(transport, found):
            found_any = True
            if isinstance(news, Block):
                self.run.add_bins(origin, news.group, news.name, news.bins)
            else:
                self.run.add(origin, news)
        return found_any


class EntryReader:
    """Collects new entries as they come; ones that a later attempt replaces were told already."""

    def __init__(self, record: Record) -> None:
        self._files = MetricsFiles(record.job_dir)
        self._merger = Merger()
        self._fresh: list[Entry] = []

    def refresh(self, session: Session, _: Record) -> bool:
        """Bring what is new; return whether anything was."""
        for origin, line in _only_lines(self._files.news(session.transport)):
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
    news = _only_lines(MetricsFiles(record.job_dir).news(transport))
    return merge((origin, line) for origin, line in news if keep(origin))


def _only_lines(
    news: Iterator[tuple[Origin, MetricsLine | Block]],
) -> Iterator[tuple[Origin, MetricsLine]]:
    for origin, line in news:
        if isinstance(line, MetricsLine):
            yield origin, line
