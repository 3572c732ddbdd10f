"""Read the metrics of a training: one list over all its attempts, learners and sources.

The reader keeps an offset for each file, so that a look brings only what is new. It opens long
files by their bins (`dlctl.outputs.metrics.long_files`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlctl.contract import METRICS
from dlctl.contract.measured.bins import Bin
from dlctl.contract.metrics import MetricsLine, Source, parse_lines, parse_metrics_name
from dlctl.files.small_files import look_at, read_appended
from dlctl.outputs.metrics.cache import KeptFile, load
from dlctl.outputs.metrics.long_files import LongFile, open_long
from dlctl.series.merged import Entry, Merger, merge
from dlctl.series.replays import Origin

if TYPE_CHECKING:
    from dlctl.record import Record
    from dlctl.transport import Transport
    from dlctl.transport.resident import Look

FILES = "*.jsonl"
"""The files that hold lines."""
_LOOK_BYTES = 8 * 1024 * 1024
"""The most that a look reads of one file."""
_LONGEST_BYTES = 1024 * 1024
"""A longer line is no line of metrics."""
_OVERLAP_BYTES = 64


class Changed(Exception):  # noqa: N818
    """A file is not the one that a cache has kept a part of."""


@dataclass(frozen=True)
class Block:
    """Bins of one series of a file, in the place of its lines."""

    group: str
    name: str
    bins: list[Bin]


class MetricsFiles:
    """Follows the files of metrics below one job directory.

    Args:
        by_bins: whether to open long files by their bins; otherwise all of their lines are read.
    """

    def __init__(self, job_dir: str, *, by_bins: bool = False) -> None:
        self.folder = f"{job_dir}/{METRICS}"
        self._offsets: dict[str, int] = {}
        self._rests: dict[str, bytes] = {}
        self.long: dict[str, LongFile] = {}
        self.kept: dict[str, KeptFile] | None = {} if by_bins else None
        """The lines that a cache needs; None if there are none, or too many."""
        self._opened = not by_bins
        self._waiting: dict[str, LongFile] = {}
        self._arrived: dict[str, list[bytes]] = {}
        """Lines read and not yet yielded: a connection may break between two reads."""
        self._overlaps: dict[str, bytes] = {}
        """The last bytes of cached files, which the first look reads again."""

    @property
    def look(self) -> Look | None:
        """Return what to read for `news`; None before the first look."""
        if not self._opened or self._overlaps:
            return None
        return look_at(self.folder, [FILES], self._offsets, _LOOK_BYTES)

    def positions(self) -> dict[str, int]:
        """Return where the last whole line of each file ends that was yielded."""
        return {name: offset - len(self._rests.get(name, b""))
                for name, offset in self._offsets.items()}  # fmt: skip

    def skip(self, name: str, size_bytes: int) -> None:
        """Begin to read a file at an offset, where a line begins."""
        if parse_metrics_name(name):
            self._offsets[name] = size_bytes

    def restore(self, kept: dict[str, KeptFile]) -> Iterator[tuple[Origin, MetricsLine | Block]]:
        """Yield what a cache has kept; the next look checks that the files are still the same."""
        self._opened, self.kept = True, kept
        for name in sorted(kept, key=order_of):
            file = kept[name]
            if file.bins:
                self.long[name] = LongFile(name, file.bins)
                yield from self._blocks(self.long[name])
            yield from self._lines(name, bytes(file.lines))
            self._overlaps[name] = bytes(file.lines[-_OVERLAP_BYTES:])
            self._offsets[name] = file.end_bytes

    def news(
        self, transport: Transport, found: Mapping[str, bytes] | None = None
    ) -> Iterator[tuple[Origin, MetricsLine | Block]]:
        """Yield what has arrived since the last call, by attempt and learner.

        Args:
            found: What another look has read that `look` asks for, if there was one.

        Raises:
            Changed: a file is not what a cache has kept of it, or much longer; nothing was yielded.
            TransferError: a file can't be read.
        """
        if not self._opened:
            self._waiting = self._open(transport)
        again = True
        while again:  # a file comes whole before those of later attempts
            fresh = found
            if fresh is None:
                known = {n: o - len(self._overlaps.get(n, b"")) for n, o in self._offsets.items()}
                fresh = read_appended(transport, self.folder, [FILES], known, _LOOK_BYTES)
                fresh = self._without_overlaps(transport, fresh)
            again = found is None and any(len(c) == _LOOK_BYTES for c in fresh.values())
            for name, content in fresh.items():
                self._offsets[name] = self._offsets.get(name, 0) + len(content)
                self._arrived.setdefault(name, []).append(content)
                if self.kept is not None:
                    self.kept.setdefault(name, KeptFile()).lines += content
        waiting, self._waiting = self._waiting, {}
        arrived, self._arrived = self._arrived, {}
        for name in sorted({*waiting, *arrived}, key=order_of):
            if (file := waiting.get(name)) is not None:
                yield from self._blocks(file)
            for content in arrived.get(name, []):
                yield from self._lines(name, content)

    def _without_overlaps(self, transport: Transport, fresh: dict[str, bytes]) -> dict[str, bytes]:
        """Return what is new. Of a file that is gone, as after a purge, stays what was kept."""
        kept = self._overlaps.items()
        changed = {n for n, last in kept if not fresh.get(n, b"").startswith(last)}
        if changed and read_appended(transport, self.folder, sorted(changed), {}, 1):
            raise Changed
        full = {n: self._offsets.get(n, 0) for n, c in fresh.items() if len(c) == _LOOK_BYTES}
        if self._overlaps and full and open_long(transport, self.folder, full):
            raise Changed
        overlaps, self._overlaps = self._overlaps, {}
        return {name: content[len(overlaps.get(name, b"")) :] for name, content in fresh.items()}

    def _open(self, transport: Transport) -> dict[str, LongFile]:
        self.long = {file.name: file for file in open_long(transport, self.folder)}
        self._offsets = {name: file.end for name, file in self.long.items()}
        self.kept = {name: KeptFile(file.end, file.content) for name, file in self.long.items()}
        self._opened = True
        return dict(self.long)

    def _blocks(self, file: LongFile) -> Iterator[tuple[Origin, MetricsLine | Block]]:
        """Yield what opens a long file: its events, and its bins."""
        if (origin := origin_of(file.name)) is None:
            return
        for stretch in file.stretches:
            for event in stretch.events:
                yield origin, event
        for (group, name), bins in file.series().items():
            yield origin, Block(group, name, bins)

    def _lines(self, name: str, content: bytes) -> Iterator[tuple[Origin, MetricsLine | Block]]:
        if (origin := origin_of(name)) is None:
            return
        whole, _, rest = (self._rests.get(name, b"") + content).rpartition(b"\n")
        self._rests[name] = rest[-_LONGEST_BYTES:]
        for line in parse_lines(whole):
            yield origin, line


def origin_of(name: str) -> Origin | None:
    """Return where the lines of a file come from; None if it is no file of metrics."""
    known = parse_metrics_name(name)
    return None if known is None else Origin(*known)


def order_of(name: str) -> tuple[int, int, str]:
    """Return a key that sorts files by attempt, then by learner."""
    attempt, rank, source = parse_metrics_name(name) or (0, 0, Source.LOOP)
    return attempt, rank, source.value


class EntryReader:
    """Collects new entries as they come; ones that a later attempt replaces were told already."""

    def __init__(self, record: Record) -> None:
        self._files = MetricsFiles(record.job_dir)
        self._merger = Merger()

    def news(self, transport: Transport, found: Mapping[str, bytes] | None = None) -> list[Entry]:
        """Return the entries that have come since the last call.

        Args:
            found: What another look has read that `look` asks for.

        Raises:
            TransferError: a file can't be read.
        """
        lines = _only_lines(self._files.news(transport, found))
        return [Entry(*each) for each in lines if self._merger.add(*each)]

    @property
    def look(self) -> Look:
        """Return what to read for `news`."""
        look = self._files.look
        assert look is not None, "nothing is kept"
        return look

    def positions(self) -> dict[str, int]:
        """Return up to which byte each file was told; `skip` begins there."""
        return self._files.positions()

    def skip(self, name: str, size_bytes: int) -> None:
        """Begin to read a file at an offset."""
        self._files.skip(name, size_bytes)


def read_metrics(
    transport: Transport, record: Record, keep: Callable[[Origin], bool] = lambda _: True,
    found: Mapping[str, bytes] | None = None,
) -> list[Entry]:  # fmt: skip
    """Return all entries of a training; steps that were done again have replaced earlier ones.

    Args:
        keep: Says whose entries are wanted.
        found: The files, if another look has read them.

    Raises:
        TransferError: a file can't be read.
    """
    news = _only_lines(MetricsFiles(record.job_dir).news(transport, found))
    return merge((origin, line) for origin, line in news if keep(origin))


def kept_metrics(record: Record) -> tuple[float, list[Entry]] | None:
    """Return when the site last answered (Unix seconds) and what a cache holds of a training.

    None if it holds nothing, or no lines but bins of a file, from which no exact list can be made.
    """
    if (cached := load(record)) is None or any(file.bins for file in cached.files.values()):
        return None
    files = MetricsFiles(record.job_dir)
    return cached.seen_at, merge(_only_lines(files.restore(cached.files)))


def _only_lines(
    news: Iterator[tuple[Origin, MetricsLine | Block]],
) -> Iterator[tuple[Origin, MetricsLine]]:
    for origin, line in news:
        if isinstance(line, MetricsLine):
            yield origin, line
