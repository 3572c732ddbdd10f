"""Look at trainings again and again: their states and what they measured, over open connections."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from dlctl.errors import TransportError
from dlctl.lifecycle import QueuePace, refresh, stale

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.record import Record, RecordStore

_STATE_EVERY_S, _QUIET_STATE_EVERY_S = 2.0, 20.0
"""How often to ask for states: while something is measured, and while nothing is."""
_RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0)


class Reader(Protocol):
    """What brings the news of one training."""

    def refresh(self, session: Session, record: Record) -> bool:
        """Bring what is new; return whether anything was."""


R = TypeVar("R", bound=Reader)


class Looks(Generic[R]):
    """Keeps one session open for each site; a site that does not answer is asked again later.

    Args:
        open_site: opens the site of a name.
        make_reader: makes the reader of a training.
        more: brings what is better asked for all trainings of a site at once, after their readers;
            returns the ids of trainings with news.
        quiet_s: how often to ask for states while nothing is new.
    """

    def __init__(
        self,
        records: Sequence[Record],
        store: RecordStore,
        open_site: Callable[[str], Session],
        make_reader: Callable[[Record], R],
        more: Callable[[Session, Sequence[tuple[R, Record]]], set[str]] | None = None,
        quiet_s: float = _QUIET_STATE_EVERY_S,
    ) -> None:
        self.records = {record.training_id: record for record in records}
        self.readers = {record.training_id: make_reader(record) for record in records}
        self.trouble: dict[str, str] = {}
        """By site: why it does not answer."""
        self._store, self._open, self._more, self._quiet_s = store, open_site, more, quiet_s
        self._sessions: dict[str, Session] = {}
        self._asked_at: dict[str, float] = {}
        self._paces: dict[str, QueuePace] = {}
        self._busy: set[str] = set()
        """The sites of which the last look brought anything new."""
        self._failures: dict[str, int] = {}
        self._retry_at: dict[str, float] = {}

    @property
    def ended(self) -> bool:
        """Return whether all trainings have ended."""
        return all(record.state.final for record in self.records.values())

    def look(self) -> set[str]:
        """Ask all sites; return the ids of trainings of which anything is new.

        Raises:
            DlctlError: a site can't be reached, and waiting would not help.
        """
        found: set[str] = set()
        for site in sorted({record.site for record in self.records.values()}):
            if time.monotonic() < self._retry_at.get(site, 0.0):
                continue
            mine = [r for r in self.records.values() if r.site == site]
            try:
                found |= self._look_at(site, mine)
            except TransportError as error:
                if not error.transient:
                    raise
                found |= self._failed(site, mine, error)
        return found

    def session(self, site: str) -> Session:
        """Return the open session of a site."""
        if site not in self._sessions:
            self._sessions[site] = self._open(site).stay()
        return self._sessions[site]

    def close(self) -> None:
        """Close all sessions."""
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    def _look_at(self, site: str, mine: list[Record]) -> set[str]:
        session, found = self.session(site), set[str]()
        # The states come first: what was measured before an end is there once it is known.
        every_s = _STATE_EVERY_S if site in self._busy else self._quiet_s
        if time.monotonic() - self._asked_at.get(site, float("-inf")) > every_s:
            pace = self._paces.setdefault(site, QueuePace())
            for record in refresh(session, mine, self._store, pace):
                before = self.records[record.training_id]
                if replace(record, seen_at=before.seen_at) != before:
                    found.add(record.training_id)
                self.records[record.training_id] = record
            self._asked_at[site] = time.monotonic()
        known = [self.records[each.training_id] for each in mine]
        readers = [(self.readers[record.training_id], record) for record in known]
        found |= {r.training_id for reader, r in readers if reader.refresh(session, r)}
        if self._more is not None:
            found |= self._more(session, readers)
        (self._busy.add if found else self._busy.discard)(site)
        if self.trouble.pop(site, None) is not None:
            found |= {record.training_id for record in mine}
        self._failures.pop(site, None)
        return found

    def _failed(self, site: str, mine: list[Record], error: TransportError) -> set[str]:
        """Note that a site does not answer; try a new connection after a while."""
        count = self._failures[site] = self._failures.get(site, 0) + 1
        self._retry_at[site] = time.monotonic() + _RETRY_S[min(count, len(_RETRY_S)) - 1]
        self.trouble[site] = error.message
        for record in stale(mine, error, self._store):
            self.records[record.training_id] = record
        return {record.training_id for record in mine}
