"""When a client that stays asks a site again what costs the site much. Pure, but for the clock.

What a job's files prove needs no queue: its heartbeat is fresh, or its verdict is there. For the
rest the queue is asked soon after anything has changed, then less and less often.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from dlctl.contract import State
from dlctl.lifecycle.continuation import is_due
from dlctl.lifecycle.observation import Observation
from dlctl.lifecycle.observe import is_alive
from dlctl.record import Record

_SOON_S, _SOON_AGAIN_S = 2.0, 4.0
"""How long until the queue is asked again, at first and after a change; and then once more."""
_EVERY_S, _WAITING_S = 15.0, 60.0
"""How long later on; and how long in the end while all jobs that it is asked about wait in it."""
_RENEW_EVERY_S = 3600.0
_WAITING = (State.QUEUED, State.PENDING)


def is_proven(record: Record, seen: Observation) -> bool:
    """Return whether the files alone tell the state: the job lives, or has ended for good."""
    if not seen.exists or seen.next_begun:
        return False
    if seen.verdict is None:
        return is_alive(seen)
    action = seen.verdict.action
    return not (action and action.goes_on) and not is_due(record, seen)


def _shown(seen: Observation) -> object:
    """Return what the files show, without what changes while a job lives."""
    return (
        seen.exists, seen.begun, seen.answer, seen.claim, seen.fenced, seen.next_begun,
        seen.verdict, seen.cancel_asked, seen.halt_asked,
        seen.supervisor.state if seen.supervisor else None,
    )  # fmt: skip


class QueuePace:
    """Remembers, for one site, when its queue was asked and about what."""

    def __init__(self) -> None:
        self._asked_at, self._pause_s = float("-inf"), _SOON_S
        self._renewed_at = float("-inf")
        self._shown: dict[str, object] = {}
        """What the files of each training showed when the queue was asked about it."""

    def asks(self, records: Sequence[Record], seen: Mapping[str, Observation]) -> bool:
        """Return whether the queue is to be asked now; the caller then does that."""
        shown = {
            record.training_id: _shown(look) for record in records
            if not is_proven(record, look := seen[record.training_id])
        }  # fmt: skip
        changed = {name for name, each in shown.items() if self._shown.get(name) != each}
        asked = [r for r in records if r.training_id in shown
                 and (not r.state.final or r.training_id in changed)]  # fmt: skip
        if changed:
            self._pause_s = _SOON_S
        if not asked or time.monotonic() - self._asked_at < self._pause_s:
            return False
        self._asked_at = time.monotonic()
        self._shown |= shown
        self._slow_down(all(record.state in _WAITING for record in asked))
        return True

    def renews(self) -> bool:
        """Return whether the files of waiting jobs are to be kept from a purge now."""
        is_due = time.monotonic() - self._renewed_at >= _RENEW_EVERY_S
        if is_due:
            self._renewed_at = time.monotonic()
        return is_due

    def _slow_down(self, is_waiting: bool) -> None:
        if self._pause_s < _SOON_AGAIN_S:
            self._pause_s = _SOON_AGAIN_S
        elif is_waiting:
            self._pause_s = min(max(_EVERY_S, 2 * self._pause_s), _WAITING_S)
        else:
            self._pause_s = _EVERY_S
