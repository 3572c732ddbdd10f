"""Paces a client that stays, so that it asks a site seldom, and keeps waiting jobs from a purge.

What a job's files prove needs no queue: its heartbeat is on time, or its verdict is there. For the
rest the queue is asked soon after anything has changed, then less and less often.

Sites remove files from scratch file systems that nobody has changed for some weeks, and a job may
wait for longer. Whenever dlctl asks about such a job, it gives the files the time of now: a running
job does that itself.
"""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Mapping, Sequence

from dlctl import contract
from dlctl.contract import State
from dlctl.errors import TransportError
from dlctl.files.small_files import read_files
from dlctl.lifecycle.observe import Observation, is_alive, is_due
from dlctl.lifecycle.session import Session
from dlctl.record import Record
from dlctl.units import unix_seconds

_SOON_S, _SOON_AGAIN_S = 2.0, 4.0
"""How long until the queue is asked again, at first and after a change; and then once more."""
_EVERY_S, _WAITING_S = 15.0, 60.0
"""How long later on; and how long in the end while all jobs that it is asked about wait in it."""
_RENEW_EVERY_S = 3600.0
_WAITING = (State.QUEUED, State.PENDING)
_RENEW_AFTER_S = 86400.0
_RENEW = f"""\
now=$(date +%Y%m%d%H%M.%S) # no file may become newer than the index beside it
renew() {{ # plan, folders: if the plan is more than a day old
    [ -n "$(find "$1" -mtime +0 2>/dev/null)" ] || return 0
    find "$@" -path '*/attempts/*/{contract.RESULTS}' -prune -o -type f \\
        -exec touch -c -t "$now" {{}} + 2>/dev/null
}}
"""


def keep_files(session: Session, records: Sequence[Record]) -> None:
    """Renew the times of what jobs need that have waited for more than a day."""
    before = time.time() - _RENEW_AFTER_S
    plans = {
        f"{record.job_dir}/{contract.plan_file(record.attempt)}": record.job_dir
        for record in records
        if record.state is State.PENDING and (unix_seconds(record.created_at) or before) < before
    }
    if not plans:
        return
    with contextlib.suppress(TransportError):
        found = read_files(session.transport, list(plans))
        lines = [_line(path, job_dir, found[path]) for path, job_dir in plans.items()]
        session.transport.run(_RENEW + "\n".join(lines), timeout_s=90.0)


def _line(path: str, job_dir: str, content: bytes | None) -> str:
    folders = [job_dir]
    with contextlib.suppress(contract.ContractError):
        plan = contract.from_json(contract.Plan, content or b"")
        folders += [plan.runtime_dir, f"{plan.root}/store/{plan.code_digest}"]
        folders += [f"{plan.root}/secrets/{plan.training_id}"]
        if made := plan.made_environment:
            folders.append(made.python.rpartition("/bin/")[0])
    return "renew " + " ".join(shlex.quote(word) for word in (path, *folders))


def is_proven(record: Record, observation: Observation) -> bool:
    """Return whether the files alone tell the state: the job lives, or has ended for good."""
    if not observation.exists or observation.next_begun:
        return False
    if observation.verdict is None:
        return is_alive(observation)
    action = observation.verdict.action
    return not (action and action.goes_on) and not is_due(record, observation)


def _shown(observation: Observation) -> object:
    """Return what the files show, without what changes while a job lives."""
    return (
        observation.exists, observation.begun, observation.answer, observation.claim,
        observation.fenced, observation.next_begun, observation.verdict,
        observation.cancel_asked, observation.halt_asked,
        observation.supervisor.state if observation.supervisor else None,
    )  # fmt: skip


class Pace:
    """When to ask a queue: soon after a change, then less and less often."""

    def __init__(self) -> None:
        self._asked_at, self._pause_s = float("-inf"), _SOON_S

    def hurry(self) -> None:
        """Note that something has changed."""
        self._pause_s = _SOON_S

    def is_due(self, *, is_at_hand: bool = False) -> bool:
        """Return whether the queue is to be asked now; the caller then does that.

        Args:
            is_at_hand: Whether it was asked for somebody else just now.
        """
        now = time.monotonic()
        if not is_at_hand and now - self._asked_at < self._pause_s:
            return False
        self._asked_at = now
        return True

    def slow_down(self, *, is_waiting: bool) -> None:
        """Have the next question wait for longer, above all while all jobs wait."""
        if self._pause_s < _SOON_AGAIN_S:
            self._pause_s = _SOON_AGAIN_S
        elif is_waiting:
            self._pause_s = min(max(_EVERY_S, 2 * self._pause_s), _WAITING_S)
        else:
            self._pause_s = _EVERY_S


class QueuePace:
    """Remembers, for one site, when its queue was asked and about what."""

    def __init__(self) -> None:
        self._pace = Pace()
        self._renewed_at = float("-inf")
        self._shown: dict[str, object] = {}
        """The evidence of each training's files when the queue was asked about it."""

    def asks(self, records: Sequence[Record], observations: Mapping[str, Observation]) -> bool:
        """Return whether the queue is to be asked now; the caller then does that."""
        shown = {
            record.training_id: _shown(look) for record in records
            if not is_proven(record, look := observations[record.training_id])
        }  # fmt: skip
        changed = {name for name, each in shown.items() if self._shown.get(name) != each}
        open_records = [r for r in records if r.training_id in shown
                        and (not r.state.final or r.training_id in changed)]  # fmt: skip
        if changed:
            self._pace.hurry()
        if not open_records or not self._pace.is_due():
            return False
        self._shown |= shown
        self._pace.slow_down(is_waiting=all(record.state in _WAITING for record in open_records))
        return True

    def renews(self) -> bool:
        """Return whether the files of waiting jobs are to be kept from a purge now."""
        is_due = time.monotonic() - self._renewed_at >= _RENEW_EVERY_S
        if is_due:
            self._renewed_at = time.monotonic()
        return is_due
