"""The cache of a site: what it holds of data stores, and emptying it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dlctl.contract.stores import CachedData
from dlctl.lifecycle.environment import bring_runtime
from dlctl.lifecycle.remote_module import run_module
from dlctl.lifecycle.staging.stores import MOVE_TIMEOUT_S

if TYPE_CHECKING:
    from dlctl.lifecycle.session import Session


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
    words = [session.site.root]
    if keep_bytes is not None:
        words += [str(keep_bytes), str(unused_s)]
    runtime = bring_runtime(session)
    told = run_module(
        session, runtime, "learner.supervisor.cached", words, timeout_s=MOVE_TIMEOUT_S
    ).value
    held, removed = ([CachedData(**row) for row in told[name]] for name in ("held", "removed"))
    return SiteCache(held, removed, int(told["total_bytes"]))


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
