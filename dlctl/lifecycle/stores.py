"""Move data between a training's data stores and its site outside its job; the site's cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.contract.stores import STORE, CachedData
from dlctl.errors import RecordError
from dlctl.lifecycle.environment import bring_runtime
from dlctl.lifecycle.remote_module import run_module
from dlctl.lifecycle.submit import lacking_runtime, send
from dlctl.lifecycle.watch import read_plan, refresh

if TYPE_CHECKING:
    from dlctl.lifecycle.session import Session
    from dlctl.record import Record, RecordStore

_MOVE_TIMEOUT_S = 7 * 86400.0


def bring_by_login(
    session: Session, plan: contract.Plan, on_line: Callable[[str], None] | None = None
) -> None:
    """Have the login node load the training data before the job, if the site's file says so.

    Raises:
        ResultsError: the data can't be loaded; nothing is queued.
        TransportError
    """
    if any(store.via == "login" and store.training_data for store in plan.data_stores):
        _run(session, plan, "load", 1, on_line)


def store_again(
    session: Session, record: Record, store: RecordStore,
    on_line: Callable[[str], None] | None = None,
) -> list[str]:  # fmt: skip
    """Have the login node store a training's results; return a line for each data store.

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
    return _run(session, plan, "store", record.attempt, on_line)


@dataclass(frozen=True)
class SiteCache:
    """The cache of a site: what it holds, and what was removed just now."""

    held: list[CachedData]
    """The longest unused first."""
    removed: list[CachedData]
    total_bytes: int
    """Less than all of `held` together if they share contents."""


def look_into_cache(session: Session, keep_bytes: int | None = None) -> SiteCache:
    """Return what a site's cache holds; first remove what no training uses, down to a size.

    Args:
        keep_bytes: How much may stay; None removes nothing.

    Raises:
        SiteError: the site has no Python for its nodes.
        TransportError
    """
    words = [session.site.root] if keep_bytes is None else [session.site.root, str(keep_bytes)]
    runtime = bring_runtime(session)
    told = run_module(
        session, runtime, "learner.supervisor.cached", words, timeout_s=_MOVE_TIMEOUT_S
    ).value
    held, removed = ([CachedData(**row) for row in told[name]] for name in ("held", "removed"))
    return SiteCache(held, removed, int(told["total_bytes"]))


def _run(
    session: Session, plan: contract.Plan, verb: str, attempt: int,
    on_line: Callable[[str], None] | None,
) -> list[str]:  # fmt: skip
    send(session, plan.root, lacking_runtime(session, plan))
    answer = run_module(
        session, plan, "learner.supervisor.bring", [verb, plan.job_dir, str(attempt)],
        timeout_s=_MOVE_TIMEOUT_S, on_line=on_line,
    )  # fmt: skip
    return [str(line) for line in answer.value]
