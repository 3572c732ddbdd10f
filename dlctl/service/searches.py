"""Ask how far a search is, and say how many workers it may have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlctl.lifecycle import refresh
from dlctl.search.overview import read_overview
from dlctl.search.sent import sent_search
from dlctl.search.workers import read_pools, set_pool, top_up

if TYPE_CHECKING:
    from dlctl.contract.search import Pool
    from dlctl.lifecycle import Session
    from dlctl.record import Record, RecordStore
    from dlctl.search.overview import Overview


def status(session: Session, record: Record, store: RecordStore) -> tuple[Record, Overview]:
    """Return a search as it is now; submit the workers that its hub has asked for in vain."""
    record = refresh(session, [record], store)[0]
    seen = read_overview(session, record)
    if seen.hub_asks and not record.state.final:
        top_up(session, record, seen.wanted)
    return record, seen


def scale(
    session: Session, record: Record, store: RecordStore, span: tuple[int, int] | None = None,
    partition: str | None = None,
) -> list[Pool]:  # fmt: skip
    """Return how many workers a search may have, in each partition.

    Args:
        span: How many it may have from now on, at least and at most.
        partition: Of these workers.
    """
    if span is not None:
        record = refresh(session, [record], store)[0]
        with sent_search(session, record) as loaded:
            set_pool(session, loaded, record, *span, partition)
    return read_pools(session, record)
