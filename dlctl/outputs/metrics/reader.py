"""Keep the curves of a training as new as its site tells, beginning with what a cache holds."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from dlctl.contract.metrics import MetricsLine, Source
from dlctl.outputs.metrics import cache
from dlctl.outputs.metrics.files import Block, Changed, MetricsFiles, origin_of
from dlctl.outputs.metrics.long_files import LongFile, read_points
from dlctl.series.replays import Origin
from dlctl.series.run import Run

if TYPE_CHECKING:
    from dlctl.record import Record
    from dlctl.transport import Transport
    from dlctl.transport.resident import Look

_MOST_KEPT_BYTES = 24 * 1024 * 1024
"""The limit for one training, before compression; beyond it long files are opened by bins."""
_SAVE_EVERY_S = 10.0
_REST = 50
"""The least pause between two saves, as a multiple of the time that one takes."""


class MetricsReader:
    """Keeps a `Run` as new as its site tells.

    Args:
        restore: whether to begin at once with what the cache holds.
    """

    def __init__(self, record: Record, restore: bool = True) -> None:
        self._record = record
        self.lock = threading.RLock()
        """Held while the run grows; who holds it reads the run in peace."""
        self.run = Run(record.training_id)
        self._files = MetricsFiles(record.job_dir, by_bins=True)
        self.seen_at = 0.0
        """When the site last answered (Unix seconds here); 0 if nothing is known."""
        self._unconfirmed = False
        """Whether all that is known came from the cache."""
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
            self._unconfirmed = True

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
            kept = cache.Cached(self.seen_at, self._files.kept)
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
        for file in self._curves_files():
            found |= self._refine(transport, file, begin, end, width)
        return found

    def is_fine(self, begin: float, end: float, width: int) -> bool:
        """Return whether nothing is gained by refining a window of steps."""
        return not any(file.coarse(begin, end, width) for file in self._curves_files())

    def _curves_files(self) -> list[LongFile]:
        """Return the long files whose values are by step."""
        return [file for name, file in self._files.long.items()
                if (origin := origin_of(name)) and origin.source is not Source.NODE]  # fmt: skip

    def _refine(
        self, transport: Transport, file: LongFile, begin: float, end: float, width: float
    ) -> bool:
        if not (stretches := file.coarse(begin, end, width)):
            return False
        points = read_points(transport, self._files.folder, file, stretches)
        origin = origin_of(file.name)
        assert origin is not None
        for (group, name), bins in points.items():
            with self.lock:
                self.run.refine(origin, group, name, bins)
        return True

    def _empty(self) -> tuple[Run, MetricsFiles]:
        record = self._record
        return Run(record.training_id), MetricsFiles(record.job_dir, by_bins=True)

    def _confirm(self, transport: Transport) -> bool:
        """Go on behind what the cache held, or read all anew if that is not what the site has."""
        try:
            return self._add_all(self.run, self._files.news(transport))
        except Changed:
            return self._read_anew(transport)

    def _read_anew(self, transport: Transport) -> bool:
        """Read all files; what was known stays until that has succeeded."""
        run, files = self._empty()
        found_any = self._add_all(run, files.news(transport))
        self.run, self._files = run, files
        self._unsaved = True
        return found_any

    def _fill(self, transport: Transport) -> None:
        """Bring the lines of bins that were dropped where attempts meet."""
        halved, self.run.halved = self.run.halved, []
        for part in set(halved):
            for file in self._curves_files():
                origin = origin_of(file.name)
                if origin and (origin.source, origin.learner) == (part.source, part.learner):
                    self._refine(transport, file, part.first, part.last, math.inf)

    def _bound(self, transport: Transport) -> None:
        """Open long files anew, by their bins, once their lines have become too many to keep."""
        if _size_bytes(self._files.kept) > _MOST_KEPT_BYTES:
            self._read_anew(transport)
            if _size_bytes(self._files.kept) > _MOST_KEPT_BYTES:
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


def _size_bytes(files: Mapping[str, cache.KeptFile] | None) -> int:
    return sum(len(file.bins) + len(file.lines) for file in (files or {}).values())
