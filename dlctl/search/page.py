"""Make the JSON of a search's page: trials by columns, the best, importance. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dlctl.search.importance import LEAST, METHOD, Importance, importances
from dlctl.search.summary import best_words, count_words, left_of, strategy_words
from dlctl.search.waits import why_trials_wait

if TYPE_CHECKING:
    from dlctl.contract.search import Parameter
    from dlctl.record import Record
    from dlctl.search.overview import Overview
    from dlctl.search.trials import TrialRow, Trials

MOST_BEST, MOST_NEW = 1000, 1000
"""The numbers of best and of newest trials that a page gets if there are more than both."""


def page_of(
    overview: Overview, record: Record, important: Sequence[Importance] | None = None
) -> dict[str, Any]:
    """Return what a page shows.

    Args:
        important: what `importances` said, if it is known already.
    """
    spec, found = overview.spec, overview.trials
    rows = shown_rows(found)
    if important is None:
        important = importances(spec.space, found.ended, maximize=spec.maximize)
    return {
        "id": record.training_id, "name": record.name, "site": record.site,
        "state": str(record.state), "reason": record.reason, "stale_since": record.stale_since,
        "metric": spec.metric, "maximize": spec.maximize, "strategy": strategy_words(overview),
        "counts": count_words(overview), "best": best_words(found),
        "left": "" if record.state.final else left_of(overview, record).words,
        "waits": why_trials_wait(overview, record),
        "space": [_parameter(each) for each in spec.space],
        "trials": _columns(rows, spec.space, found),
        "all_trials": len(found.rows),
        "best_over_time": [asdict(each) for each in found.best_over_time()],
        "best_trial": None if found.best is None else found.best.number,
        "importance": {"method": METHOD, "least": LEAST, "of": [asdict(i) for i in important]},
        "workers": [asdict(job) for job in overview.jobs],
        "brokers": [asdict(each) for each in overview.brokers] if not record.state.final else [],
    }  # fmt: skip


def shown_rows(found: Trials) -> list[TrialRow]:
    """Return the trials that a page shows: all, or the best and the newest ones."""
    if len(found.rows) <= MOST_BEST + MOST_NEW:
        return list(found.rows)
    sign = -1 if found.spec.maximize else 1
    older = [row for row in found.rows[:-MOST_NEW] if row.metric is not None]
    best = sorted(older, key=lambda row: (sign * (row.metric or 0.0), row.number))[:MOST_BEST]
    return [*sorted(best, key=lambda row: row.number), *found.rows[-MOST_NEW:]]


def _parameter(each: Parameter) -> dict[str, Any]:
    return {
        "name": each.name, "kind": each.kind, "low": each.low, "high": each.high, "log": each.log,
        "choices": [str(choice) for choice in each.choices],
    }  # fmt: skip


def _columns(rows: Sequence[TrialRow], space: Sequence[Parameter], found: Trials) -> dict[str, Any]:
    """Return the trials column by column; the value of a choice is its place among the choices."""
    place = {number: ended for ended, number in enumerate(found.order, 1)}
    columns: dict[str, Any] = {
        name: [getattr(row, name) for row in rows]
        for name in ("number", "metric", "seconds", "worker", "error", "ended_at")
    }
    columns["outcome"] = [row.outcome_words for row in rows]
    columns["ended"] = [place.get(row.number) for row in rows]
    columns["point"] = {each.name: [_value(each, row.point) for row in rows] for each in space}
    return columns


def _value(each: Parameter, point: dict[str, Any]) -> float | int | None:
    if each.name not in point:
        return None
    value = point[each.name]
    if each.kind != "choice":
        return float(value) if each.kind == "float" else int(value)
    return each.choices.index(value) if value in each.choices else None
