"""What the dashboard keeps of searches: their trials, and what is derived from them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from dlctl.dashboard.feed import Unknown
from dlctl.errors import RecordError
from dlctl.search.importance import Importance, importances
from dlctl.search.overview import SearchReader
from dlctl.search.page import page_of

if TYPE_CHECKING:
    from dlctl.dashboard.curves import Json
    from dlctl.lifecycle import Session
    from dlctl.record import Record
    from dlctl.search.overview import Overview

_FEW_MORE = 0.02
"""Importance is derived anew when there are so many more trials, as a share."""


class Searches:
    """The searches that pages have asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers: dict[str, SearchReader] = {}
        self._important: dict[str, tuple[int, list[Importance]]] = {}
        """Search → of how many ended trials, and what it was."""

    def refresh(self, session: Session, record: Record) -> None:
        """Bring what is new of a search.

        Raises:
            TransportError
        """
        self._reader(record).refresh(session, record)

    def page(self, record: Record) -> Json:
        """Return what a page shows of a search.

        Raises:
            Unknown: it is no search, or nothing is known of it.
        """
        try:
            seen = self._reader(record).overview
        except RecordError as error:
            raise Unknown(error.message) from error
        return page_of(seen, record, self._importances(seen, record))

    def _importances(self, seen: Overview, record: Record) -> list[Importance]:
        count = len(seen.trials.order)
        of, known = self._important.get(record.training_id, (-1, []))
        if of < 0 or count > of * (1 + _FEW_MORE) or (record.state.final and count != of):
            spec = seen.spec
            known = importances(spec.space, seen.trials.ended, maximize=spec.maximize)
            self._important[record.training_id] = count, known
        return known

    def _reader(self, record: Record) -> SearchReader:
        with self._lock:
            return self._readers.setdefault(record.training_id, SearchReader(record))
