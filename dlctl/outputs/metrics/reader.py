"""Keep the curves of a training as new as its site tells, beginning with what a cache holds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from dlctl.contract.metrics import MetricsLine, Source
from dlctl.outputs.metrics import cache
from dlctl.outputs.metrics.bins import is_fine, is_long, points_of, read_piece, refine
from dlctl.outputs.metrics.files import Block, Changed, MetricsFiles, order_of, origin_of
from dlctl.series.curve import key_of
from dlctl.series.replays import Origin
from dlctl.series.run import Halved, Run

if TYPE_CHECKING:
    from dlctl.record import Record
    from dlctl.transport import Transport
    from dlctl.transport.resident import Look

BUDGET_BYTES = 256 * 1024
"""Of the bins of each shape of a file."""
_MOST_KEPT_BYTES = 24 * 1024 * 1024
"""Of one training, before compression; then its long files are opened anew, by their bins."""
_FINER = 16
"""Into how many bins one is refined that may hide the first number of its curve."""
_SAVE_EVERY_S = 10.0
_REST = 50
"""How many times as long as it takes to save, at least, until the next time."""


class MetricsReader:
    """Keeps a `Run` as new as its site tells.

    Args:
        budget_bytes: of the bins by which it opens each long file.
        restore: whether to begin at once with what the cache holds.
    """

    def __init__(
        self, record: Record, budget_bytes: int = BUDGET_BYTES, restore: bool = True
    ) -> None:
        self._record, self._budget_bytes = record, budget_bytes
        self.lock = threading.RLock()
        """Held while the run grows; who holds it reads the run in peace."""
        self.run = Run(record.training_id)
        self._files = MetricsFiles(record.job_dir, budget_bytes)
        self.seen_at = 0.0
        """When the site last answered (Unix seconds here); 0 if nothing is known."""
        self._unconfirmed = False
        """Whether all that is known came from the cache."""
        self._kept_budget_bytes = budget_bytes
        self._unsaved, self._save_at = False, float("-inf")
        self._fresh = True
        if restore:
            self.restore()

    def restore(self) -> None:
        """Begin with what the cache holds, unless something was read already."""
        with self.lock:  # another page may be at it
            if not self._fresh:
                return
            self._fresh = False
            if (cached := cache.load(self._record)) is None:
                return
            run, files = self._empty()
            try:
                self._add_all(run, files.restore(cached.files))
            except (ArithmeticError, LookupError, ValueError):  # it was damaged before it was kept
                return
            self.run, self._files, self.seen_at = run, files, cached.seen_at
            self._fill(None)
            self._kept_budget_bytes, self._unconfirmed = cached.budget_bytes, True

    @property
    def look(self) -> Look | None:
        """Return what to read for `refresh`; None before the first look."""
        return None if self._unconfirmed else self._files.look

    def refresh(self, transport: Transport, found: Mapping[str, bytes] | None = None) -> bool:
        """Bring what is new; return whether anything was.

        Args:
            found: What another look has read that `look` asks for, if there was one.

        Raises:
            TransportError
        """
        self.restore()
        if self._unconfirmed:
            found_any = self._confirm(transport)
            self._unconfirmed = False
        else:
            found_any = self._add_all(self.run, self._files.news(transport, found))
        if self.run.out_of_order:  # the file system showed an attempt's last lines late
            self._read_anew(transport)
        self._fill(transport)
        self._find_firsts(transport)
        self._bound(transport)
        self.seen_at = time.time()
        self._unsaved |= found_any
        if time.monotonic() >= self._save_at or (self._unsaved and not found_any):
            self.save()
        return found_any

    def save(self) -> None:
        """Keep what is known on this machine, so that it opens without the site."""
        began = time.monotonic()
        if self._files.kept is None:
            return
        if self._unsaved:
            kept = cache.Cached(self._kept_budget_bytes, self.seen_at, self._files.kept)
            cache.store(self._record, kept)
        else:
            cache.touch(self._record, self.seen_at)
        self._unsaved = False
        self._save_at = time.monotonic() + max(_SAVE_EVERY_S, _REST * (time.monotonic() - began))

    def refine(self, transport: Transport, begin: float, end: float, width: int) -> bool:
        """Bring finer bins of a window of steps; return whether there are any.

        Raises:
            TransportError
        """
        found = False
        for file in self._files.long.values():
            origin = origin_of(file.name)
            if origin is None or origin.source is Source.NODE:
                continue
            finer = refine(transport, self._files.folder, file, begin, end, width)
            for named, parts in finer.items():
                for bins in parts:
                    with self.lock:
                        self.run.refine(origin, named.group, named.name, bins)
                found = True
        return found

    def is_fine(self, begin: float, end: float, width: int) -> bool:
        """Return whether a window of steps has so many bins of each curve, or all there are."""
        return all(is_fine(file, begin, end, width) for file in self._files.long.values())

    def _empty(self) -> tuple[Run, MetricsFiles]:
        record = self._record
        return Run(record.training_id), MetricsFiles(record.job_dir, self._budget_bytes)

    def _confirm(self, transport: Transport) -> bool:
        """Go on behind what the cache held, or read all anew if that is not what the site has."""
        is_coarse = self._kept_budget_bytes < self._budget_bytes and self._files.long
        if is_coarse or self._files.is_far_behind(self._files.read_sizes(transport)):
            return self._read_anew(transport)
        try:
            return self._add_all(self.run, self._files.news(transport))
        except Changed:
            return self._read_anew(transport)

    def _read_anew(self, transport: Transport) -> bool:
        """Read all files; what was known stays until that has succeeded."""
        run, files = self._empty()
        found_any = self._add_all(run, files.news(transport))
        self.run, self._files = run, files
        self._kept_budget_bytes, self._unsaved = self._budget_bytes, True
        return found_any

    def _fill(self, transport: Transport | None) -> None:
        """Bring the lines of bins that were dropped where attempts meet; None: only kept ones."""
        left = [h for h in self.run.halved if not self._filled(h)]
        if transport is not None and left:
            for file, first, last in {p for h in left for p in self._places(h)}:
                read_piece(transport, self._files.folder, self._files.long[file], first, last)
                self._unsaved = True
            for halved in left:
                self._filled(halved)
            left = []  # what is not there now will not come
        self.run.halved = left

    def _find_firsts(self, transport: Transport) -> None:
        """Refine bins that begin with what is no number, until the first number is seen."""
        for curve in self.run.curves.values() if self._files.long else ():
            while (hidden := curve.hides_first) and self.refine(transport, *hidden, _FINER):
                pass

    def _places(self, halved: Halved) -> Iterator[tuple[str, float, float]]:
        """Yield the long files that may hold the points of a halved bin, and their steps."""
        for name in sorted(self._files.long, key=order_of, reverse=True):
            origin = origin_of(name)
            if origin and (origin.source, origin.learner) == (
                halved.key.source,
                halved.key.learner,
            ):
                yield name, halved.first, halved.last

    def _filled(self, halved: Halved) -> bool:
        """Fill a halved bin from pieces that were read; return whether they hold it."""
        for name, first, last in self._places(halved):
            file, origin = self._files.long[name], origin_of(name)
            assert origin is not None
            for piece in file.pieces:
                for series, points in points_of(file, piece).items():
                    named = file.names[series]
                    key = key_of(origin.source, origin.learner, named.group, named.name)
                    holds = points[0].step_first <= first and points[-1].step_last >= last
                    with self.lock:
                        if key == halved.key and holds and self.run.fill(origin, halved, points):
                            return True
        return False

    def _bound(self, transport: Transport) -> None:
        """Open long files anew, by their bins, once their lines have become too many to keep."""
        if (kept := self._files.kept) is None or _size_bytes(kept.values()) <= _MOST_KEPT_BYTES:
            return
        sizes = self._files.read_sizes(transport)
        if any(is_long(name, sizes) for name in kept if name in sizes):
            self._read_anew(transport)
        if _size_bytes((self._files.kept or {}).values()) > _MOST_KEPT_BYTES:
            self._files.kept = None

    def _add_all(self, run: Run, news: Iterable[tuple[Origin, MetricsLine | Block]]) -> bool:
        found_any = False
        for origin, each in news:  # it may wait for the site, and does not keep the lock then
            found_any = True
            with self.lock:
                if isinstance(each, Block):
                    run.add_bins(origin, each.group, each.name, each.bins)
                else:
                    run.add(origin, each)
        return found_any


def _size_bytes(files: Iterable[cache.KeptFile]) -> int:
    return sum(len(f.lines) + sum(len(part[-1]) for part in f.parts) for f in files)
