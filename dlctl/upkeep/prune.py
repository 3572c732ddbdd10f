"""Remove from a site what ended long ago, and what no training uses any more.

Nothing is removed that may be in use. A training is first moved aside, and its next attempt
claimed: a resumption that comes at that moment either has begun before, and then the training goes
back, or finds no training. What trainings share is moved aside, and goes back if a plan names it
or a submission has asked for it since.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from dlctl import contract
from dlctl.contract.stores import CACHE, CachedData
from dlctl.data import look_into_cache
from dlctl.errors import DlctlError
from dlctl.files.site_folders import explained, guard
from dlctl.lifecycle.session import Session
from dlctl.lifecycle.watch import with_made
from dlctl.models.changes import Collected, collect_garbage
from dlctl.outputs.metrics.cache import forget
from dlctl.record import Record, RecordStore
from dlctl.record.used import keep
from dlctl.request.request import runtime_entries
from dlctl.script_templates import render_script
from dlctl.upkeep.inventory import Inventory, take_inventory
from dlctl.upkeep.usage import REFERENCES

_TIMEOUT_S = 3600.0
_JUST_USED_S = 60.0
"""Other nodes may see only after a while that a training has begun to use data of the cache."""
_LEFT_MIN = 60
"""A folder that is aside for longer was left by a prune that was killed."""
KEPT_PARTS = ("checkpoints", "rehearsal", "data")
"""The parts that go of a training whose results stay, as far as their size is known."""


@dataclass(frozen=True)
class Candidate:
    """A training that may go."""

    record: Record
    ended_at: float
    size_bytes: int
    """The bytes that its removal frees."""


@dataclass(frozen=True)
class Prunable:
    """The trainings and folders that may go at one site."""

    inventory: Inventory
    trainings: list[Candidate]
    forgotten: list[Record]
    """Trainings that ended long ago, of which only the local record tells."""
    unused: dict[str, int]
    """Folders that trainings share and none uses → bytes."""
    keep_results: bool
    contents: Collected | None = None
    """Contents of stored models that no version names."""
    cached: list[CachedData] = field(default_factory=list)
    """Data of stores that no training has asked for since."""
    older_than_s: float = 0.0
    problem: str = ""
    """Why the cache could not be asked; empty if it could."""
    removed: Pruned | None = None
    """The outcome; None: nothing was removed yet."""

    def plain(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "site": self.inventory.site, "keeps_results": self.keep_results,
            "trainings": [{"training_id": t.record.training_id, "state": str(t.record.state),
                           "ended_at": t.ended_at, "size_bytes": t.size_bytes}
                          for t in self.trainings],
            "forgotten": [record.training_id for record in self.forgotten],
            "unused": self.unused, "cached": self.cached, "contents": self.contents,
            "size_bytes": self.size_bytes, "removed": self.removed,
        }  # fmt: skip

    @property
    def size_bytes(self) -> int:
        """Return how much would be freed."""
        return (
            sum(each.size_bytes for each in self.trainings) + sum(self.unused.values())
            + sum(each.size_bytes for each in self.cached)
            + (self.contents.size_bytes if self.contents else 0)
        )  # fmt: skip

    def __bool__(self) -> bool:
        contents = self.contents.blobs if self.contents else 0
        return bool(self.trainings or self.unused or self.forgotten or self.cached or contents)


@dataclass(frozen=True)
class Pruned:
    """The outcome at one site."""

    trainings: list[str]
    unused: list[str]
    freed_bytes: int
    stays: dict[str, str] = field(default_factory=dict)
    """Training → why it stays after all."""
    cached: list[CachedData] = field(default_factory=list)
    contents: int = 0
    """The number of contents of stored models."""


def look(
    session: Session, store: RecordStore, older_than_s: float, *, keep_results: bool = False
) -> Prunable:
    """Return what may go at a site; nothing changes.

    Args:
        older_than_s: For how long trainings must have ended.
        keep_results: Remove only checkpoints and the like.

    Raises:
        TransportError
    """
    found = take_inventory(session, usage=True)
    mine = {record.training_id: record for record in store.all()
            if record.site == session.site.name}  # fmt: skip
    candidates = [
        Candidate(_as_fetched(with_made(session, record), mine), _ended_at(record),
                  _size(found, record, keep_results))
        for record in found.records if _is_old(record, found.now - older_than_s)
    ]  # fmt: skip
    if keep_results:
        candidates = [each for each in candidates if each.size_bytes]
    there = {record.training_id for record in found.records}
    there |= {each.training_id for each in found.damaged}
    gone = [
        record for name, record in mine.items()
        if name not in there and _is_old(record, found.now - older_than_s)
    ]  # fmt: skip
    unused = {} if found.damaged else found.usage.unused()
    if keep_results or "jobs" not in found.usage.folders:  # the root may be one not mounted now
        gone = []
    contents = None
    if found.usage.folders.get(contract.MODELS):
        contents = collect_garbage(session, int(older_than_s), dry_run=True)
    cached, problem = _cached(session, found, older_than_s)
    if found.usage.folders.get(CACHE):  # the question has just used this version's runtime
        unused.pop(f"runtime/{runtime_entries()[0]}", None)
    return Prunable(found, candidates, gone, unused, keep_results, contents, cached, older_than_s,
                    problem)  # fmt: skip


def _as_fetched(record: Record, mine: dict[str, Record]) -> Record:
    """Return what a site tells of a training with what was fetched of it to this machine."""
    if (known := mine.get(record.training_id)) is None:
        return record
    return replace(
        record, fetched_attempt=known.fetched_attempt,
        checkpoints_fetched_attempt=known.checkpoints_fetched_attempt,
        output_fetched_attempt=known.output_fetched_attempt,
    )  # fmt: skip


def _cached(
    session: Session, found: Inventory, older_than_s: float
) -> tuple[list[CachedData], str]:  # fmt: skip
    """Return the cached data that may go, and why the cache could not be asked."""
    if not found.usage.folders.get(CACHE):
        return [], ""
    try:
        held = look_into_cache(session).held
    except DlctlError as error:
        return [], error.message
    before = found.now - max(older_than_s, _JUST_USED_S)
    return [each for each in held if not each.users and each.used_at <= before], ""


def _is_old(record: Record, before: float) -> bool:
    """Return whether a training has surely ended before a time; a stale one may not have."""
    return record.state.final and record.stale_since is None and _ended_at(record) <= before


def _ended_at(record: Record) -> float:
    """Return when a training ended; when it was submitted, if it never began."""
    if record.ended_at:
        return record.ended_at
    try:
        return max(record.started_at, datetime.fromisoformat(record.created_at).timestamp())
    except ValueError:
        return float("inf")


def _size(found: Inventory, record: Record, keep_results: bool) -> int:
    if not keep_results:
        return found.usage.of(record.training_id)
    return sum(found.usage.of(record.training_id, part) for part in KEPT_PARTS)


def prune(
    session: Session, store: RecordStore, older_than_s: float, keep_results: bool,
    agreed: Callable[[Prunable], bool],
) -> Prunable:  # fmt: skip
    """Remove what may go at a site, if the user agrees; return it.

    Args:
        agreed: Whether it may go; asked once, even if there is nothing.

    Raises:
        TransportError
    """
    going = look(session, store, older_than_s, keep_results=keep_results)
    if not agreed(going):
        return going
    removed = remove(session, store, going)
    for training_id in () if keep_results else removed.trainings:
        forget(training_id)
    return replace(going, removed=removed)


def remove(session: Session, store: RecordStore, going: Prunable) -> Pruned:
    """Remove what `look` has found, unless somebody has begun to use it since.

    Raises:
        TransportError
    """
    gone_soon = {each.record.training_id for each in going.trainings}
    keep(store, [past for past in going.inventory.pasts if past.training_id in gone_soon])
    script = _script(session, list(going.unused), going.keep_results)
    lines = "".join(
        f"{each.record.training_id} {each.record.attempt + 1}\n" for each in going.trainings
    )
    end = session.transport.run(script, stdin=lines.encode(), timeout_s=_TIMEOUT_S)
    if end.exit_code:
        raise explained(session.transport, session.site.root, end)
    answers = [line.split(" ", 2) for line in end.lines]
    gone = {words[1] for words in answers if words[0] == "gone"}
    stays = {words[1]: words[2] for words in answers if words[0] == "stays" and len(words) > 2}
    removed = [each for each in going.trainings if each.record.training_id in gone]
    if not going.keep_results:
        store.remove(*(each.record.training_id for each in removed),
                     *(record.training_id for record in going.forgotten))  # fmt: skip
    unused = [name for name in going.unused if name in gone]
    cached = list[CachedData]()
    if going.cached:
        cached = look_into_cache(session, 0, max(going.older_than_s, _JUST_USED_S)).removed
    contents = None
    if going.contents and going.contents.blobs:
        contents = collect_garbage(session, int(going.older_than_s))
    freed = sum(each.size_bytes for each in removed) + sum(going.unused[n] for n in unused)
    freed += sum(each.size_bytes for each in cached) + (contents.size_bytes if contents else 0)
    return Pruned([each.record.training_id for each in removed], unused, freed, stays, cached,
                  contents.blobs if contents else 0)  # fmt: skip


def _script(session: Session, unused: Sequence[str], keep_results: bool) -> str:
    return render_script(
        "login/prune.sh.j2", guard=guard(session.site.root), root=session.site.root,
        token=secrets.token_hex(6), left_min=_LEFT_MIN, keep_results=keep_results,
        references=REFERENCES, unused=shlex.quote(" ".join(unused)),
    )  # fmt: skip
