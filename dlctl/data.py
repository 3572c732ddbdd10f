"""Results that go to their stores once more, and the caches of sites.

Imports `dlctl.lifecycle` for an open site. What passes through is what a site's cache holds. What
a submission itself needs of stores is in `dlctl.lifecycle.staging`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl.contract.stores import STORE, CachedData
from dlctl.errors import RecordError
from dlctl.lifecycle import read_plan, refresh
from dlctl.lifecycle.remote_module import run_module
from dlctl.lifecycle.staging import MOVE_TIMEOUT_S, bring_runtime, save
from dlctl.lifecycle.submit import renew_credentials
from dlctl.request.attempts import read_newest

if TYPE_CHECKING:
    from dlctl.lifecycle.session import Session
    from dlctl.record import Record, RecordStore


def store_again(
    session: Session, record: Record, store: RecordStore,
    on_line: Callable[[str], None] = lambda _: None,
) -> list[str]:  # fmt: skip
    """Have the login node, or this machine, store a training's results; return a line a store.

    Raises:
        RecordError: the training has not ended, or no data store takes its results.
        ResultsError: they can't be stored.
        TransportError
    """
    record = refresh(session, [record], store)[0]
    if not record.state.final:
        raise RecordError(
            f"{record.training_id} is {record.state}: its results are stored when it has ended",
            hint=f"dlctl show {record.training_id}",
        )
    plan = read_plan(session, record)
    if not any(STORE in each.scripts for each in plan.data_stores):
        raise RecordError(
            f"no data store of {record.training_id} takes results by a script",
            hint=f"dlctl fetch {record.training_id}",
        )
    manifest = read_newest(session.transport, record).manifest
    renew_credentials(session, plan, manifest, Path(record.folder))
    return save(session, plan, record.attempt, on_line)


@dataclass(frozen=True)
class SiteCache:
    """The cache of a site: what it holds, and what was removed just now."""

    held: list[CachedData]
    """The longest unused first."""
    removed: list[CachedData]
    total_bytes: int
    """Less than all of `held` together if they share contents."""
    would_remove: list[CachedData] = field(default_factory=list)
    """What a dry run would have removed."""


def look_into_cache(
    session: Session, keep_bytes: int | None = None, unused_s: float = 0.0
) -> SiteCache:
    """Return what a site's cache holds; first remove what no training uses, down to a size.

    Args:
        keep_bytes: How much may stay; None removes nothing.
        unused_s: Remove only what no training has asked for in this time.

    Raises:
        SiteError: the site has no Python for its nodes.
        TransportError
    """
    words = ["cache", session.site.root]
    if keep_bytes is not None:
        words += [str(keep_bytes), str(unused_s)]
    runtime = bring_runtime(session)
    answer = run_module(
        session, runtime, "learner.supervisor.site_data", words, timeout_s=MOVE_TIMEOUT_S
    )
    held, removed = ([CachedData(**row) for row in answer[name]] for name in ("held", "removed"))
    return SiteCache(held, removed, int(answer["total_bytes"]))


def try_emptying(session: Session, keep_bytes: int) -> SiteCache:
    """Return what a site's cache holds, and what `look_into_cache` would remove of it.

    It may be more if several folders share contents: removing one of them then frees less.
    """
    found = look_into_cache(session)
    excess_bytes, going = found.total_bytes - keep_bytes, list[CachedData]()
    for each in found.held:
        if excess_bytes > 0 and not each.users:
            going.append(each)
            excess_bytes -= each.size_bytes
    return replace(found, would_remove=going)
